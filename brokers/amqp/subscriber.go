package amqp

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

var _ message.SubscribeInitializer = (*subscriber)(nil)

// subscriber opens subscriptions of one consumer.
type subscriber struct {
	message.Subscriber
	broker   *Broker
	consumer string
}

// SubscribeInitialize is Watermill's name for [Broker.Register]: what is published from then on arrives, and what was before if it is the
// topic's first consumer. It takes at most Config.PublishTimeout.
func (s *subscriber) SubscribeInitialize(topic string) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.broker.config.PublishTimeout)
	defer cancel()
	return s.broker.Register(ctx, topic, s.consumer)
}

// subscribe registers the consumer with the topic, see [Broker.Register], and opens a subscription on a channel of its own. Acks that
// were given by its end reach the server; what was not settled goes back to the queue. So its context has to last as long as
// anybody holds a delivery. When the channel or the connection is lost, the contexts of what was delivered end with [ErrLost],
// and the subscription goes on on a new one as soon as there is one.
func (b *Broker) subscribe(ctx context.Context, want brokers.Subscription, topic string) (adapter.Opened, error) {
	n := newSubscription(b, want, topic)
	var first *session
	err := b.register(ctx, topic, []string{want.Consumer})
	if err == nil {
		first, err = n.open(ctx)
	}
	if err != nil {
		return adapter.Opened{}, fmt.Errorf("amqp: subscribe consumer %q to topic %q: %w", want.Consumer, topic, err)
	}
	return adapter.Opened{Out: n.out, Run: func(ctx context.Context) { n.run(ctx, first) }, Abandon: func() { n.abandon(first) }}, nil
}
