package runtime_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/runtime"
)

// settlements is a broker that counts what its deliveries are settled with.
type settlements struct {
	brokers.Broker
	nacked, released atomic.Int32
}

func (b *settlements) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	sub, err := b.Broker.Subscriber(s)
	return &settlementSubscriber{sub, b}, err
}

type settlementSubscriber struct {
	message.Subscriber
	broker *settlements
}

func (s *settlementSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for msg := range in {
			d := *brokers.DeliveryOf(msg.Context())
			release, settled := d.Release, d.Settled
			d.Release = func() {
				s.broker.released.Add(1)
				release()
			}
			d.Settled = func() {
				select {
				case <-msg.Nacked():
					s.broker.nacked.Add(1)
				default:
				}
				if settled != nil {
					settled()
				}
			}
			msg.SetContext(brokers.WithDelivery(msg.Context(), &d))
			out <- msg
		}
	}()
	return out, nil
}

// A handler was cut off by the drain limit, and its message was nacked: some brokers answer that with the same message, at once and
// again and again, others count it as a failed delivery.
func TestS5CutOffMessageIsReleasedAndNotNacked(t *testing.T) {
	var broker settlements
	b := newBench(t, func(c *runtime.Config) {
		broker.Broker = c.Broker
		c.Broker, c.DrainTimeout = &broker, 20*time.Millisecond
	})
	began := make(chan struct{}, 1)
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(ctx context.Context, _ order) error {
		began <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	b.publish("orders", placed(t, "1"))
	b.start()
	receive(t, "the handler to begin", began)
	if err := b.stop(); err == nil {
		t.Error("Run returned nil, want the error of a drain whose limit has passed")
	}
	if nacked, released := broker.nacked.Load(), broker.released.Load(); nacked != 0 || released != 1 {
		t.Errorf("%d nacks and %d releases, want 0 and 1", nacked, released)
	}
}
