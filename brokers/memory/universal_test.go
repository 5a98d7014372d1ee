package memory_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/memory"
)

// Watermill's own suite. With one un-acked delivery the broker keeps the order that the suite calls guaranteed;
// with a window, which the suite knows nothing of, it delivers ahead of the acks.
func TestUniversal(t *testing.T) {
	for _, tt := range []struct {
		name   string
		window int
	}{{"one un-acked", 1}, {"window", 100}} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBroker(t, memory.Config{})
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

func newBroker(tb testing.TB, config memory.Config) *memory.Broker {
	tb.Helper()
	b, err := memory.New(config)
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
