package redisstream

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// subscriber opens subscriptions of one consumer.
type subscriber struct {
	broker       *Broker
	subscription brokers.Subscription
	adapter.Subscriptions
}

// Subscribe makes the stream and the group, which begins with the stream's first entry, if they are not there, and
// starts a subscription. It ends, and its channel is closed, when ctx ends or the subscriber or the broker is
// closed. Acks that were given by then reach the server; what was not settled is given back. So ctx has to
// last as long as anybody holds a delivery.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	want := s.subscription
	switch {
	case topic == "":
		return nil, fmt.Errorf("redisstream: subscriber of consumer %q: the topic is empty", want.Consumer)
	case want.Topic != "" && want.Topic != topic:
		return nil, fmt.Errorf("redisstream: subscriber of consumer %q is for topic %q, not for %q", want.Consumer, want.Topic, topic)
	}
	m := newMembership(&s.broker.config, topic, want.Consumer, s.broker.member())
	if err := m.join(ctx); err != nil {
		return nil, fmt.Errorf("redisstream: subscribe consumer %q to topic %q: %w", want.Consumer, topic, err)
	}
	n := newSubscription(&s.broker.config, m, topic, want.Window)
	if err := s.Go(ctx, n.run); err != nil {
		n.abandon()
		return nil, fmt.Errorf("redisstream: subscribe to topic %q: subscriber of consumer %q: %w", topic, want.Consumer, err)
	}
	return n.out, nil
}

// Close ends all subscriptions and waits for them. It is idempotent.
func (s *subscriber) Close() error {
	s.Subscriptions.Close()
	s.broker.subs.Remove(s)
	return nil
}
