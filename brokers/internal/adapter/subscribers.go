package adapter

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

// Subscribers are the subscribers that a broker has opened. It is safe for concurrent use.
type Subscribers struct {
	System    string // begins the errors
	Window    int    // of a subscription that does not say which
	MaxWindow int    // 0: no limit

	// Open opens a subscription of want to topic, which is I/O. Its error says all.
	Open func(ctx context.Context, want brokers.Subscription, topic string) (Opened, error)

	members Members[*subscriber]
}

// Opened is a subscription that was opened and does not run yet.
type Opened struct {
	Out     <-chan *message.Message // closed at the end of Run
	Run     func(context.Context)   // until the context ends
	Abandon func()                  // instead of Run
}

// Check returns want with its window, or an error that names the field that is wrong.
func (s *Subscribers) Check(want brokers.Subscription) (brokers.Subscription, error) {
	switch {
	case want.Consumer == "":
		return want, fmt.Errorf("%s: Subscription.Consumer is empty", s.System)
	case s.MaxWindow > 0 && (want.Window < 0 || want.Window > s.MaxWindow):
		return want, fmt.Errorf("%s: Subscription.Window of consumer %q is %d: want 0 to %d", s.System, want.Consumer, want.Window, s.MaxWindow)
	case want.Window < 0:
		return want, fmt.Errorf("%s: Subscription.Window of consumer %q is %d: want at least 0", s.System, want.Consumer, want.Window)
	case want.Window == 0:
		want.Window = s.Window
	}
	return want, nil
}

// New checks want and returns a subscriber for it. It refuses with [ErrClosed] after Close.
func (s *Subscribers) New(want brokers.Subscription) (message.Subscriber, error) {
	want, err := s.Check(want)
	if err != nil {
		return nil, err
	}
	sub := &subscriber{all: s, want: want}
	if err := s.members.Add(sub); err != nil {
		return nil, fmt.Errorf("%s: subscriber of consumer %q: broker: %w", s.System, want.Consumer, err)
	}
	return sub, nil
}

// Closed reports whether Close was called.
func (s *Subscribers) Closed() bool { return s.members.Closed() }

// Close ends all subscriptions, at the same time, and waits for them. It is idempotent.
func (s *Subscribers) Close() error { return s.members.Close() }

// subscriber opens subscriptions of one consumer.
type subscriber struct {
	all     *Subscribers
	want    brokers.Subscription
	running Subscriptions
}

// Subscribe opens a subscription and starts it. It ends, and its channel is closed, when ctx ends or the subscriber or the broker is closed.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	refused := func(why error) error {
		return fmt.Errorf("%s: subscribe consumer %q to topic %q: %w", s.all.System, s.want.Consumer, topic, why)
	}
	switch {
	case topic == "":
		return nil, refused(errors.New("the topic is empty"))
	case s.want.Topic != "" && s.want.Topic != topic:
		return nil, refused(fmt.Errorf("the subscriber is for topic %q", s.want.Topic))
	case s.running.Closed():
		return nil, refused(fmt.Errorf("subscriber: %w", ErrClosed))
	}
	n, err := s.all.Open(ctx, s.want, topic)
	if err != nil {
		return nil, err
	}
	if err := s.running.Go(ctx, n.Run); err != nil {
		n.Abandon()
		return nil, refused(fmt.Errorf("subscriber: %w", err))
	}
	return n.Out, nil
}

// Close ends all subscriptions and waits for them. It is idempotent.
func (s *subscriber) Close() error {
	s.running.Close()
	s.all.members.Remove(s)
	return nil
}
