package jetstream_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/internal/leak"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// Watermill's own suite. With one un-acked delivery JetStream keeps the order that the suite calls guaranteed; with a
// window, which the suite knows nothing of, it delivers ahead of the acks.
func TestUniversal(t *testing.T) {
	for _, tt := range []struct {
		name   string
		window int
		double bool
		server bool
	}{
		{"one un-acked", 1, false, false},
		{"window", 100, false, false},
		{"window, double ack", 100, true, false},
		{"window, server", 100, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := jetstream.Config{DoubleAck: tt.double, NackDelay: time.Millisecond, MaxNackDelay: 20 * time.Millisecond}
			var b brokers.Broker
			if tt.server {
				config.URL = testserver.NATS(t)
				b = openBroker(t, config)
			} else {
				b = newBroker(t, config)
			}
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
				GuaranteedOrder:                     tt.window == 1,
				GuaranteedOrderWithSingleSubscriber: true,
				Persistent:                          true,
			}
			tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) {
				return group(t, "universal")
			}, group)
			t.Run("a new group receives old messages", func(t *testing.T) {
				features.NewSubscriberReceivesOldMessages = true
				tests.TestNewSubscriberReceivesOldMessages(t, tests.TestContext{TestID: tests.NewTestID(), Features: features},
					func(t *testing.T) (message.Publisher, message.Subscriber) {
						return group(t, watermill.NewUUID())
					})
			})
		})
	}
}

// newBroker returns a broker on a server of its own. Both end with the test.
func newBroker(tb testing.TB, config jetstream.Config) *embedded.Broker {
	tb.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(tb.Output(), nil))
	}
	b, err := embedded.New(embedded.Config{Dir: tb.TempDir(), Logger: config.Logger}, config)
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
