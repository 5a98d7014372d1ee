package amqp_test

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/headracetest/brokertest"
	"github.com/headrace-go/headrace/internal/leak"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const wait = 15 * time.Second

// channel returns a channel to the real server, or to the one of url, on a connection that ends with the test.
func channel(tb testing.TB, url string) *amqp091.Channel {
	tb.Helper()
	conn, err := amqp091.Dial(url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() }) // a test may have closed it
	ch, err := conn.Channel()
	if err != nil {
		tb.Fatal(err)
	}
	return ch
}

// litter is what brokers have declared on the shared server, to be deleted after the test.
type litter struct {
	mu     sync.Mutex
	queues map[string]bool
	topics map[string]bool
}

func (l *litter) topic(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.topics[topic], l.queues[topic+"/unrouted!"] = true, true
}

func (l *litter) queue(name, topic string) {
	l.topic(topic)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queues[name] = true
}

// sweep deletes it.
func sweep(tb testing.TB) *litter {
	url := testserver.AMQP(tb)
	l := &litter{queues: map[string]bool{}, topics: map[string]bool{}}
	tb.Cleanup(func() {
		conn, err := amqp091.Dial(url)
		if err != nil {
			tb.Errorf("cannot clean up: %v", err)
			return
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			tb.Errorf("cannot clean up: %v", err)
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		for q := range l.queues {
			if _, err := ch.QueueDelete(q, false, false, false); err != nil {
				tb.Errorf("delete queue %s: %v", q, err)
			}
		}
		for topic := range l.topics {
			for _, x := range []string{topic, topic + "/unrouted!"} {
				if err := ch.ExchangeDelete(x, false, false); err != nil {
					tb.Errorf("delete exchange %s: %v", x, err)
				}
			}
		}
	})
	return l
}

// open returns a broker with short times, whose litter is swept unless config names the queues.
func open(tb testing.TB, config amqp.Config) *amqp.Broker {
	tb.Helper()
	if config.URLs == nil {
		config.URLs = []string{testserver.AMQP(tb)}
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if config.NackDelay == 0 {
		config.NackDelay, config.MaxNackDelay = 5*time.Millisecond, 50*time.Millisecond
	}
	if config.QueueName == nil && config.RoutingKey == nil {
		l := sweep(tb)
		config.QueueName = func(consumer, topic string) string {
			l.queue(topic+"/"+consumer, topic)
			return topic + "/" + consumer
		}
		config.RoutingKey = func(topic string, _ *message.Message) string {
			l.topic(topic)
			return ""
		}
	}
	b, err := amqp.New(config)
	return adaptertest.Opened(tb, b, err)
}

func TestSuite(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config amqp.Config
	}{{"single active consumer", amqp.Config{}}, {"competing consumers", amqp.Config{CompetingConsumers: true}}} {
		t.Run(tt.name, func(t *testing.T) {
			foreign := func(tb testing.TB, b brokers.Broker, topic string, p amqp091.Publishing) {
				if err := b.(*amqp.Broker).Register(tb.Context(), topic, "c"); err != nil {
					tb.Fatal(err)
				}
				if err := channel(tb, testserver.AMQP(tb)).Publish(topic, "", true, false, p); err != nil {
					tb.Fatal(err)
				}
			}
			brokertest.Run(t, brokertest.Suite{
				New: func(tb testing.TB) brokers.Broker { return open(tb, tt.config) },
				PublishForeign: func(tb testing.TB, b brokers.Broker, topic string, payload []byte) {
					foreign(tb, b, topic, amqp091.Publishing{Body: payload})
				},
				PublishUndecodable: func(tb testing.TB, b brokers.Broker, topic string) []byte {
					payload := []byte("\xff\x00")
					foreign(tb, b, topic, amqp091.Publishing{Headers: amqp091.Table{"headrace-payload": "nil"}, Body: payload})
					return payload
				},
				Behind: func(tb testing.TB) (brokers.Broker, brokertest.Server) {
					p, url := testserver.NewProxyOf(tb, testserver.AMQP(tb))
					config := tt.config
					config.URLs = []string{url}
					return open(tb, config), p
				},
				Shared: true,
			})
		})
	}
}

func TestUniversal(t *testing.T) { universal(t, adaptertest.Universal) }

// universal runs Watermill's own suite.
func universal(t *testing.T, suite adaptertest.Suite) {
	adaptertest.Windows(t, func(t *testing.T, window int) {
		b := open(t, amqp.Config{PublishTimeout: time.Minute}) // its topics are registered at once, which takes its time on a busy machine
		suite(t, b, window, tests.Features{
			GuaranteedOrderWithSingleSubscriber: true,
			GuaranteedOrder:                     window == 1,
		})
	})
}
