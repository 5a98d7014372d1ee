package sqs

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

// Subscribe makes the queue if it is not there, checks its redrive policy, and starts a subscription. It ends, and its
// channel is closed, when ctx ends or the subscriber or the broker is closed; that takes up to Config.WaitTime. Acks that
// were given by then reach the service; what was not settled is given back. So ctx has to last as long as anybody holds a
// delivery.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	want := s.subscription
	switch {
	case topic == "":
		return nil, fmt.Errorf("sqs: subscriber of consumer %q: the topic is empty", want.Consumer)
	case want.Topic != "" && want.Topic != topic:
		return nil, fmt.Errorf("sqs: subscriber of consumer %q is for topic %q, not for %q", want.Consumer, want.Topic, topic)
	}
	q, err := s.broker.consumerQueue(ctx, topic, want.Consumer)
	if err != nil {
		return nil, err
	}
	if err := s.broker.checkRedrivePolicy(ctx, q); err != nil {
		if isNoQueue(err) {
			s.broker.gone(q.name)
		}
		return nil, err
	}
	n := newSubscription(s.broker, topic, want.Consumer, want.Window, q)
	if err := s.Go(ctx, n.run); err != nil {
		n.abandon()
		return nil, fmt.Errorf("sqs: subscribe to topic %q: subscriber of consumer %q: %w", topic, want.Consumer, err)
	}
	return n.out, nil
}

// Close ends all subscriptions and waits for them. It is idempotent.
func (s *subscriber) Close() error {
	s.Subscriptions.Close()
	s.broker.subs.Remove(s)
	return nil
}
