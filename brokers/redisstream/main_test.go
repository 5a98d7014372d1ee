package redisstream_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/redisstream"
	"github.com/headrace-go/headrace/headracetest/brokertest"
	"github.com/headrace-go/headrace/internal/leak"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// options are those of a client of the real server.
func options(tb testing.TB) *redis.Options {
	tb.Helper()
	o, err := redis.ParseURL(testserver.Redis(tb))
	if err != nil {
		tb.Fatal(err)
	}
	o.PoolSize = 200 // the suites open many subscriptions, each of which waits on a connection
	return o
}

// client returns a client of the real server, which ends with the test.
func client(tb testing.TB) *redis.Client {
	tb.Helper()
	c := redis.NewClient(options(tb))
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("close the client: %v", err)
		}
	})
	return c
}

// open returns a broker with short times on a client of its own, unless config has one.
func open(tb testing.TB, config redisstream.Config) *redisstream.Broker {
	tb.Helper()
	if config.Client == nil {
		config.Client = client(tb)
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if config.Patience == 0 {
		config.Patience = time.Second
	}
	config.ClaimInterval = 50 * time.Millisecond
	config.Block = 20 * time.Millisecond
	config.NackDelay, config.MaxNackDelay = 5*time.Millisecond, 50*time.Millisecond
	b, err := redisstream.New(config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return b
}

func TestSuite(t *testing.T) {
	brokertest.Run(t, brokertest.Suite{
		New: func(tb testing.TB) brokers.Broker { return open(tb, redisstream.Config{}) },
		PublishForeign: func(tb testing.TB, _ brokers.Broker, topic string, payload []byte) {
			if err := client(tb).XAdd(tb.Context(), &redis.XAddArgs{Stream: topic, Values: []any{"payload", payload}}).Err(); err != nil {
				tb.Fatal(err)
			}
		},
		PublishUndecodable: func(tb testing.TB, _ brokers.Broker, topic string) []byte {
			if err := client(tb).XAdd(tb.Context(), &redis.XAddArgs{
				Stream: topic, Values: []any{"payload", "\xff\x00", "payload", "another"},
			}).Err(); err != nil {
				tb.Fatal(err)
			}
			return []byte("\xff\x00")
		},
		Behind: func(tb testing.TB) (brokers.Broker, brokertest.Server) {
			o := options(tb)
			p := testserver.NewProxy(tb, o.Addr)
			o.Addr = p.Addr()
			c := redis.NewClient(o)
			tb.Cleanup(func() {
				if err := c.Close(); err != nil {
					tb.Errorf("close the client: %v", err)
				}
			})
			return open(tb, redisstream.Config{Client: c}), p
		},
		Shared:             true,
		UnorderedAfterKill: true, // without Config.Member
	})
}

// Watermill's own suite. With one un-acked delivery the order is what the suite calls guaranteed; with a window, which it
// knows nothing of, deliveries run ahead of the acks.
func TestUniversal(t *testing.T) {
	for _, tt := range []struct {
		name   string
		window int
	}{{"one un-acked", 1}, {"window", 100}} {
		t.Run(tt.name, func(t *testing.T) {
			b := open(t, redisstream.Config{})
			group := func(t *testing.T, consumer string) (message.Publisher, message.Subscriber) {
				pub, err := b.Publisher()
				if err != nil {
					t.Fatal(err)
				}
				sub, err := b.Subscriber(brokers.Subscription{Consumer: consumer, Window: tt.window})
				if err != nil {
					t.Fatal(err)
				}
				return pub, sub
			}
			features := tests.Features{
				ConsumerGroups:                      true,
				GuaranteedOrderWithSingleSubscriber: true,
				GuaranteedOrder:                     false,
				Persistent:                          true,
			}
			name := watermill.NewUUID()
			tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) {
				return group(t, name)
			}, group)
			features.NewSubscriberReceivesOldMessages = true
			t.Run("a new group receives old messages", func(t *testing.T) {
				tests.TestNewSubscriberReceivesOldMessages(t, tests.TestContext{TestID: tests.NewTestID(), Features: features},
					func(t *testing.T) (message.Publisher, message.Subscriber) { return group(t, watermill.NewUUID()) })
			})
		})
	}
}
