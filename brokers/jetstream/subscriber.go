package jetstream

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

// Subscribe makes sure of the stream and the durable, which is I/O, and starts a subscription. The subscription ends, and
// its channel is closed, when ctx ends, when the subscriber or the broker is closed, or when the durable
// or the stream was deleted on the server, which is logged. Acks that were given by then reach the server; what was not
// settled is given back. So ctx has to last as long as anybody holds a delivery.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	want := s.subscription
	if want.Topic != "" && want.Topic != topic {
		return nil, fmt.Errorf("jetstream: subscriber of consumer %q is for topic %q, not for %q",
			want.Consumer, want.Topic, topic)
	}
	n, err := s.broker.subscribe(ctx, want, topic)
	if err != nil {
		return nil, err
	}
	if err := s.Go(ctx, n.run); err != nil {
		n.abandon()
		return nil, fmt.Errorf("jetstream: subscribe to topic %q: subscriber of consumer %q: %w", topic, want.Consumer, err)
	}
	return n.out, nil
}

// Close ends all subscriptions and waits for them. It is idempotent.
func (s *subscriber) Close() error {
	s.Subscriptions.Close()
	s.broker.subs.Remove(s)
	return nil
}
