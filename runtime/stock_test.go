package runtime_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/runtime"
)

// anonymous is a broker that knows nothing of where its messages come from.
type anonymous struct{ brokers.Broker }

func (a anonymous) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	sub, err := a.Broker.Subscriber(s)
	if err != nil {
		return nil, err
	}
	return message.MessageTransformSubscriberDecorator(func(m *message.Message) {
		m.SetContext(brokers.WithDelivery(m.Context(), &brokers.Delivery{Topic: s.Topic, Partition: -1, Offset: -1}))
	})(sub)
}

func TestStockWatermillAdapter(t *testing.T) {
	pubsub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	broker, err := runtime.Watermill(runtime.WatermillConfig{
		Subscriber:   func(brokers.Subscription) (message.Subscriber, error) { return pubsub, nil },
		Publisher:    pubsub,
		Capabilities: brokers.Capabilities{System: "gochannel", FanOut: true},
		Delivery: func(topic string, m *message.Message) *brokers.Delivery {
			return &brokers.Delivery{Topic: topic, Partition: -1, Offset: -1, Key: []byte(m.Metadata["k"])}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, func(c *runtime.Config) { c.Broker = broker })
	var runs atomic.Int64
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(context.Context, order) error {
		if runs.Add(1) == 1 {
			return errBroken
		}
		return nil
	})
	if err := pubsub.Publish("orders", placed(t, "1"), placed(t, "2")); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.eventually("both handled", func() bool { return c.Stats().Effects == 2 })
	b.mustStop()
}

func TestWatermillNamesWhatIsMissing(t *testing.T) {
	_, err := runtime.Watermill(runtime.WatermillConfig{})
	wantParts(t, err, "WatermillConfig.Subscriber", "WatermillConfig.Publisher", "nil")
}
