package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

// subscriber opens subscriptions of one consumer.
type subscriber struct {
	broker       *Broker
	subscription brokers.Subscription

	mu      sync.Mutex
	closed  bool
	members map[*member]struct{} // that have not ended
	wg      sync.WaitGroup
}

// Subscribe makes sure of the topic, which is I/O, and joins the group. The subscription ends, and its channel is closed, when ctx ends
// or the subscriber or the broker is closed. Acks that were given by then are committed; what was not acked goes to
// the group's other members, or its next. So ctx has to last as long as anybody holds a delivery.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	m, err := s.open(ctx, topic, false)
	if err != nil {
		return nil, err
	}
	return m.out, nil
}

var _ brokers.Puller = (*subscriber)(nil)

// Pull is [subscriber.Subscribe] for those who take messages by calls. Such a message has no channels: its Ack and Nack count when Settled is
// called after them.
func (s *subscriber) Pull(ctx context.Context, topic string) (brokers.Pull, error) {
	m, err := s.open(ctx, topic, true)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (s *subscriber) open(ctx context.Context, topic string, pulled bool) (*member, error) {
	want := s.subscription
	switch {
	case topic == "":
		return nil, errors.New("kafka: subscribe: the topic's name is empty")
	case want.Topic != "" && want.Topic != topic:
		return nil, fmt.Errorf("kafka: subscriber of consumer %q is for topic %q, not for %q", want.Consumer, want.Topic, topic)
	case s.broker.config.isPattern(topic) && keptPattern.MatchString(topic):
		return nil, fmt.Errorf("kafka: subscribe consumer %q to topic %q: with Config.Regex only a name, not a pattern, reads topics that end in .DLT or .REDRIVE",
			want.Consumer, topic)
	}
	if !s.broker.config.isPattern(topic) {
		if _, err := s.broker.ensure(ctx, topic); err != nil {
			return nil, fmt.Errorf("kafka: subscribe consumer %q: %w", want.Consumer, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("kafka: subscribe to topic %q: subscriber of consumer %q: %w", topic, want.Consumer, ErrClosed)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	instance, free := s.broker.instance(want.Consumer)
	m, err := s.broker.newMember(ctx, want, topic, instance, pulled)
	if err != nil {
		free()
		cancel(err)
		return nil, err
	}
	m.end = cancel
	if s.members == nil {
		s.members = make(map[*member]struct{})
	}
	s.members[m] = struct{}{}
	s.wg.Go(func() {
		m.run()
		cancel(nil)
		free()
		s.mu.Lock()
		delete(s.members, m)
		s.mu.Unlock()
	})
	return m, nil
}

// Close ends all subscriptions and waits for them. It is idempotent.
func (s *subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	for m := range s.members {
		m.end(ErrClosed)
	}
	s.mu.Unlock()
	s.wg.Wait()
	s.broker.subs.Remove(s)
	return nil
}
