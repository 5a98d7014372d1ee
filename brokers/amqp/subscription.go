package amqp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v4"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/brokers"
)

// ErrLost is the cause, see context.Cause, with which the contexts of deliveries end whose channel was lost: the server has
// taken them back.
var ErrLost = errors.New("amqp: the delivery's channel was lost")

// subscription is one consumer of one queue, on one channel after another.
type subscription struct {
	broker          *Broker
	consumer, topic string
	queue           string
	window          int
	log             *slog.Logger
	out             chan *message.Message

	session atomic.Pointer[session] // the present one, nil: none
}

func newSubscription(b *Broker, s brokers.Subscription, topic string) *subscription {
	queue := b.config.QueueName(s.Consumer, topic)
	return &subscription{
		broker:   b,
		consumer: s.Consumer,
		topic:    topic,
		queue:    queue,
		window:   s.Window,
		log:      b.config.Logger.With("topic", topic, "consumer", s.Consumer, "queue", queue),
		out:      make(chan *message.Message),
	}
}

func (n *subscription) run(ctx context.Context, s *session) {
	letters, noMore := context.WithCancel(context.WithoutCancel(ctx))
	over := make(chan struct{})
	var hurry sync.WaitGroup
	hurry.Go(func() { n.hurry(ctx, noMore, over) })
	defer hurry.Wait()
	defer close(over)
	n.broker.noteRead(n, true)
	defer close(n.out)
	defer n.broker.noteRead(n, false)
	for s != nil {
		n.session.Store(s)
		err := s.run(ctx, letters)
		n.session.Store(nil)
		if ctx.Err() != nil {
			return
		}
		n.log.Warn("amqp: the channel was lost; subscribes again", "error", err)
		s = n.reopen(ctx)
	}
}

// abandon ends a subscription that does not run.
func (n *subscription) abandon(s *session) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	n.run(ended, s)
}

// hurry has everything end within CloseTimeout after ctx, unless it is over: half of it is for what is sent on with a delay. The client's
// calls wait for the server's answer as long as there is a connection, so that is ended then, for all subscriptions: a server that does
// not answer one answers none.
func (n *subscription) hurry(ctx context.Context, noMore func(), over <-chan struct{}) {
	defer noMore()
	select {
	case <-ctx.Done():
	case <-over:
		return
	}
	for _, do := range []func(){noMore, n.cut} {
		select {
		case <-time.After(n.broker.config.CloseTimeout / 2):
			do()
		case <-over:
			return
		}
	}
}

func (n *subscription) cut() {
	n.log.Warn("amqp: the server does not answer at the end of a subscription; ends the connection")
	n.broker.consuming.cut()
}

// reopen returns the next session, or nil when ctx has ended.
func (n *subscription) reopen(ctx context.Context) *session {
	retry := backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstDelay), backoff.WithMaxInterval(maxDelay), backoff.WithMaxElapsedTime(0))
	for {
		s, err := n.open(ctx)
		if err == nil {
			return s
		}
		delay := retry.NextBackOff()
		if ctx.Err() != nil || errors.Is(err, ErrClosed) {
			return nil
		}
		n.log.Warn("amqp: cannot subscribe; tries again", "error", err, "in", delay)
		if !sleep(ctx, delay) {
			return nil
		}
	}
}

// open begins a session on a new channel.
func (n *subscription) open(ctx context.Context) (*session, error) {
	if err := n.restore(ctx); err != nil {
		return nil, err
	}
	ch, err := n.broker.consuming.channel(ctx)
	if err != nil {
		return nil, err
	}
	closes := ch.NotifyClose(make(chan *amqp091.Error, 1))
	if err := ch.Qos(n.window, 0, false); err != nil {
		_ = ch.Close()
		return nil, fmt.Errorf("prefetch count %d: %w", n.window, err)
	}
	deliveries, err := ch.Consume(n.queue, "", false, false, false, false, nil)
	if err != nil {
		_ = ch.Close()
		return nil, fmt.Errorf("consume queue %q: %w", n.queue, err)
	}
	return newSession(n, ch, closes, deliveries), nil
}
