package pulsar_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/pulsar"
	"github.com/headrace-go/headrace/headracetest/brokertest"
	"github.com/headrace-go/headrace/internal/testserver"
)

// The client (v0.19.0) leaves a goroutine behind where a consumer is closed as soon as it is connected, as Register does, and one of a
// producer that asks for a lost server goes on until its next answer, at most OperationTimeout.
var leftBehind = []string{
	"github.com/apache/pulsar-client-go/pulsar.(*partitionConsumer).grabConn.func1",
	"github.com/apache/pulsar-client-go/pulsar.(*partitionProducer).reconnectToBroker",
}

func TestMain(m *testing.M) {
	const multiplier = "github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe" // see package leak
	ignored := []goleak.Option{goleak.IgnoreAnyFunction(multiplier + ".func2"), goleak.IgnoreAnyFunction(multiplier + ".func3")}
	for _, function := range leftBehind {
		ignored = append(ignored, goleak.IgnoreAnyFunction(function))
	}
	goleak.VerifyTestMain(m, ignored...)
}

const wait = 15 * time.Second

// dial returns a client of a server, which ends with the test.
func dial(tb testing.TB, url string) pulsarclient.Client {
	tb.Helper()
	c, err := pulsarclient.NewClient(pulsarclient.ClientOptions{
		URL:               url,
		OperationTimeout:  5 * time.Second,
		ConnectionTimeout: 2 * time.Second,
		KeepAliveInterval: 2 * time.Second,
		Logger:            log.NewLoggerWithSlog(slog.New(slog.DiscardHandler)),
		// Its metrics would stay in the process's registry.
		MetricsRegisterer: prometheus.NewRegistry(),
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// open returns a broker with short times on a client of its own, unless config has one.
func open(tb testing.TB, config pulsar.Config) *pulsar.Broker {
	tb.Helper()
	if config.Client == nil {
		config.Client = dial(tb, testserver.Pulsar(tb))
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if config.NackDelay == 0 {
		config.NackDelay, config.MaxNackDelay = 5*time.Millisecond, 50*time.Millisecond
	}
	b, err := pulsar.New(config)
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

// send sends messages as another program does.
func send(tb testing.TB, topic string, options pulsarclient.ProducerOptions, messages ...*pulsarclient.ProducerMessage) {
	tb.Helper()
	options.Topic, options.SendTimeout = topic, -1
	p, err := dial(tb, testserver.Pulsar(tb)).CreateProducer(options)
	if err != nil {
		tb.Fatal(err)
	}
	defer p.Close()
	failed := make(chan error, len(messages))
	for _, m := range messages {
		p.SendAsync(tb.Context(), m, func(_ pulsarclient.MessageID, _ *pulsarclient.ProducerMessage, err error) { failed <- err })
	}
	if err := p.FlushWithCtx(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	for range messages {
		if err := <-failed; err != nil {
			tb.Fatal(err)
		}
	}
}

// behind opens a broker whose connections go through a proxy.
func behind(tb testing.TB) (brokers.Broker, brokertest.Server) {
	p, client := proxied(tb)
	return open(tb, pulsar.Config{Client: client, Retention: time.Hour}), p
}

func TestSuite(t *testing.T) {
	suite := brokertest.Suite{
		New: func(tb testing.TB) brokers.Broker { return open(tb, pulsar.Config{Retention: time.Hour}) },
		PublishForeign: func(tb testing.TB, _ brokers.Broker, topic string, payload []byte) {
			send(tb, topic, pulsarclient.ProducerOptions{}, &pulsarclient.ProducerMessage{Payload: payload})
		},
		PublishUndecodable: func(tb testing.TB, _ brokers.Broker, topic string) []byte {
			payload := []byte("\xff\x00")
			send(tb, topic, pulsarclient.ProducerOptions{}, &pulsarclient.ProducerMessage{
				Payload: payload, Properties: map[string]string{"headrace-wire": "payload=nil"},
			})
			return payload
		},
		// The client knows one property of a name: PublishHeaderTwice has nothing to show.
		Behind:     behind,
		Shared:     true,
		LeftBehind: leftBehind,
		// With windows of 4 the server (4.0.7) stalls in one run of forty: see the package's limits.
		SharedWindow: 64,
	}
	if racing {
		suite.Behind = nil // see outage_test.go
	}
	brokertest.Run(t, suite)
}

func TestUniversal(t *testing.T) { universal(t, adaptertest.Universal) }

// universal runs Watermill's own suite.
func universal(t *testing.T, suite adaptertest.Suite) {
	adaptertest.Windows(t, func(t *testing.T, window int) {
		// Its messages have no key, and it wants the order of all: so all have one.
		b := open(t, pulsar.Config{NoDelays: true, Key: func(string, *message.Message) string { return "key" }})
		suite(t, b, window, tests.Features{
			GuaranteedOrderWithSingleSubscriber: true,
			GuaranteedOrder:                     window == 1,
			// Of fifty members with a window of one, the server (4.0.7) has forgotten some: see the package's limits.
			ForceShort: true,
		})
	})
}
