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
	broker       *Broker
	subscription brokers.Subscription
	adapter.Subscriptions
}

// Subscribe registers the consumer with the topic, see [Broker.Register], and starts a subscription on a channel of its own. It ends, and
// the returned channel is closed, when ctx ends or the subscriber or the broker is closed. Acks that were given by then
// reach the server; what was not settled goes back to the queue. So ctx has to last as long as anybody holds a delivery. When the
// channel or the connection is lost, the contexts of what was delivered end with [ErrLost], and the subscription goes on on
// a new one as soon as there is one.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	want := s.subscription
	bad := func(err error) error {
		return fmt.Errorf("amqp: subscribe consumer %q to topic %q: %w", want.Consumer, topic, err)
	}
	if want.Topic != "" && want.Topic != topic {
		return nil, bad(fmt.Errorf("the subscriber is for topic %q", want.Topic))
	}
	if err := s.broker.register(ctx, topic, []string{want.Consumer}); err != nil {
		return nil, bad(err)
	}
	n := newSubscription(s.broker, want, topic)
	first, err := n.open(ctx)
	if err != nil {
		return nil, bad(err)
	}
	if err := s.Go(ctx, func(ctx context.Context) { n.run(ctx, first) }); err != nil {
		first.end()
		return nil, bad(err)
	}
	return n.out, nil
}

// SubscribeInitialize is Watermill's name for [Broker.Register]: what is published from then on arrives, and what was before if it is the
// topic's first consumer. It takes at most Config.PublishTimeout.
func (s *subscriber) SubscribeInitialize(topic string) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.broker.config.PublishTimeout)
	defer cancel()
	return s.broker.Register(ctx, topic, s.subscription.Consumer)
}

// Close ends all subscriptions and waits for them. It is idempotent.
func (s *subscriber) Close() error {
	s.Subscriptions.Close()
	s.broker.subs.Remove(s)
	return nil
}
