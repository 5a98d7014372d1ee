package jetstream_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/headracetest/brokertest"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestSuite(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config jetstream.Config
	}{{"plain ack", jetstream.Config{}}, {"double ack", jetstream.Config{DoubleAck: true}}} {
		t.Run(tt.name, func(t *testing.T) {
			brokertest.Run(t, newSuite(tt.config, func(tb testing.TB, config jetstream.Config) (brokers.Broker, error) {
				return embedded.New(embedded.Config{Dir: tb.TempDir()}, config)
			}))
		})
	}
}

func TestSuiteOnServer(t *testing.T) {
	url := testserver.NATS(t)
	suite := newSuite(jetstream.Config{}, func(_ testing.TB, config jetstream.Config) (brokers.Broker, error) {
		config.URL = url
		return jetstream.New(config)
	})
	suite.Shared = true
	suite.Behind = func(tb testing.TB) (brokers.Broker, brokertest.Server) {
		p, through := testserver.NewProxyOf(tb, url)
		b, err := jetstream.New(suiteConfig(tb, jetstream.Config{URL: through}))
		if err != nil {
			tb.Fatal(err)
		}
		return b, p
	}
	suite.ReleasedMayRepeat = true // seen with nats-server 2.9.10, now and then
	brokertest.Run(t, suite)
}

func newSuite(config jetstream.Config, open func(testing.TB, jetstream.Config) (brokers.Broker, error)) brokertest.Suite {
	return brokertest.Suite{
		New: func(tb testing.TB) brokers.Broker {
			b, err := open(tb, suiteConfig(tb, config))
			if err != nil {
				tb.Fatal(err)
			}
			return b
		},
		PublishForeign: func(tb testing.TB, b brokers.Broker, topic string, payload []byte) {
			if _, err := conn(b).Request(topic, payload, 5*time.Second); err != nil {
				tb.Fatal(err)
			}
		},
		PublishUndecodable: func(tb testing.TB, b brokers.Broker, topic string) []byte {
			payload := []byte("payload")
			m := &nats.Msg{Subject: topic, Header: nats.Header{"headrace-meta": {"%zz"}}, Data: payload}
			if _, err := conn(b).RequestMsg(m, 5*time.Second); err != nil {
				tb.Fatal(err)
			}
			return payload
		},
		PublishHeaderTwice: func(tb testing.TB, b brokers.Broker, topic, name, first, second string) {
			m := &nats.Msg{Subject: topic, Header: nats.Header{name: {first, second}}, Data: []byte("0")}
			if _, err := conn(b).RequestMsg(m, 5*time.Second); err != nil {
				tb.Fatal(err)
			}
		},
	}
}

// suiteConfig makes config quick.
func suiteConfig(tb testing.TB, config jetstream.Config) jetstream.Config {
	config.AckWait = time.Second
	config.NackDelay, config.MaxNackDelay = 5*time.Millisecond, 50*time.Millisecond
	config.Logger = slog.New(slog.NewTextHandler(tb.Output(), nil))
	return config
}

func conn(b brokers.Broker) *nats.Conn { return b.(interface{ Conn() *nats.Conn }).Conn() }
