package pulsar

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

// Subscribe makes the subscription of the consumer, see [Broker.Register], and becomes a member of it. It ends, and the returned channel is
// closed, when ctx ends or the subscriber or the broker is closed. Acks that were given by then reach the server; what was
// not settled goes back. So ctx has to last as long as anybody holds a delivery. When the connection is lost, the contexts of
// what was delivered over it end, and the subscription goes on as soon as there is a new one.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	want := s.subscription
	bad := func(err error) error {
		return fmt.Errorf("pulsar: subscribe consumer %q to topic %q: %w", want.Consumer, topic, err)
	}
	if want.Topic != "" && want.Topic != topic {
		return nil, bad(fmt.Errorf("the subscriber is for topic %q", want.Topic))
	}
	if err := checkName("topic", topic); err != nil {
		return nil, bad(err)
	}
	n := newSubscription(s.broker, want, topic)
	if err := n.open(ctx); err != nil {
		n.abandon()
		return nil, bad(err)
	}
	if err := s.Go(ctx, n.run); err != nil {
		n.abandon()
		return nil, bad(err)
	}
	return n.out, nil
}

// SubscribeInitialize is Watermill's name for [Broker.Register]. It takes at most Config.PublishTimeout.
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
