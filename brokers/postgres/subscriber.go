package postgres

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

// subscriber opens subscriptions of one consumer.
type subscriber struct {
	broker       *Broker
	subscription brokers.Subscription

	mu     sync.Mutex
	closed bool
	ends   []context.CancelFunc
	wg     sync.WaitGroup
}

// Subscribe registers the consumer with topic, which is I/O, and starts a subscription. The subscription ends, and its
// channel is closed, when ctx ends, when the subscriber or the broker is closed, or when the consumer was
// unregistered, which is logged. Acks that were given by then are stored if the database can be reached; what was not
// settled is given back. So ctx has to last as long as anybody holds a delivery.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	b, want := s.broker, s.subscription
	if want.Topic != "" && want.Topic != topic {
		return nil, fmt.Errorf("postgres: subscriber of consumer %q is for topic %q, not for %q", want.Consumer, want.Topic, topic)
	}
	if s.isClosed() || b.isClosed() {
		return nil, fmt.Errorf("postgres: subscribe to topic %q: subscriber of consumer %q: %w", topic, want.Consumer, ErrClosed)
	}
	if err := b.Register(ctx, topic, want.Consumer); err != nil {
		return nil, err
	}
	g, err := b.find(ctx, b.pool, topic, want.Consumer)
	if err == nil && g.id == 0 {
		err = errUnregistered
	}
	if err != nil {
		return nil, fmt.Errorf("postgres: subscribe consumer %q to topic %q: %w", want.Consumer, topic, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("postgres: subscribe to topic %q: subscriber of consumer %q: %w", topic, want.Consumer, ErrClosed)
	}
	ctx, cancel := context.WithCancel(ctx)
	n := newSubscription(b, want, topic, g)
	s.ends = append(s.ends, cancel)
	b.enter(n)
	b.notifier.listen()
	s.wg.Go(func() {
		defer cancel()
		n.run(ctx)
	})
	return n.out, nil
}

// Close ends all subscriptions and waits for them. It is idempotent.
func (s *subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, end := range s.ends {
		end()
	}
	s.ends = nil
	s.mu.Unlock()
	s.wg.Wait()
	s.broker.forget(s)
	return nil
}

func (s *subscriber) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}
