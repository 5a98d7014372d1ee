package runtime_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/runtime"
)

// deaf is a broker whose subscribers never look at their context. As watermill-amqp's do, they wait for the ack of what they have
// handed over, or for Close.
type deaf struct {
	brokers.Broker
	messages chan *message.Message
	closed   chan struct{}
	toClose  bool // does not hear Close either
	once     sync.Once
}

func (d *deaf) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	if s.Topic != "orders" {
		return d.Broker.Subscriber(s)
	}
	return d, nil
}

func (d *deaf) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for {
			var msg *message.Message
			select {
			case msg = <-d.messages:
			case <-d.closed:
				return
			}
			select {
			case out <- msg:
			case <-d.closed:
				return
			}
			select {
			case <-msg.Acked():
			case <-msg.Nacked():
			case <-d.closed:
				return
			}
		}
	}()
	return out, nil
}

func (d *deaf) Close() error {
	if !d.toClose {
		d.end()
	}
	return nil
}

func (d *deaf) end() { d.once.Do(func() { close(d.closed) }) }

// stopDeaf stops a runtime on d whose handler finishes its message during the drain, so that the subscriber hands over another one that
// nobody settles. It returns how long that took, and what Run returned.
func stopDeaf(t *testing.T, d *deaf) (time.Duration, error) {
	d.messages, d.closed = make(chan *message.Message, 2), make(chan struct{})
	d.messages <- placed(t, "1")
	d.messages <- placed(t, "2")
	b := newBench(t, func(c *runtime.Config) {
		d.Broker = c.Broker
		c.Broker = d
	})
	began, stopping := make(chan struct{}), make(chan struct{})
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(context.Context, order) error {
		close(began)
		<-stopping
		return nil
	})
	b.start()
	<-began
	at := time.Now()
	b.cancel()
	synctest.Wait()
	close(stopping)
	select {
	case err := <-b.ended:
		b.ended = nil
		if got := c.Stats().Effects; got != 1 {
			t.Errorf("%d effects, want 1", got)
		}
		return time.Since(at), err
	case <-time.After(time.Hour):
		t.Fatal("Run has not returned within an hour")
	}
	panic("unreachable")
}

// Run waited for ever: for its router, which waited for the subscription's channel, which only Close would have closed, and that came after the router.
func TestI8SubscriberThatEndsOnCloseAloneIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(deaf)
		took, err := stopDeaf(t, d)
		if err != nil || took > 10*time.Second {
			t.Errorf("Run returned %v after %v, want nil within 10s", err, took)
		}
	})
}

func TestI8SubscriberThatNeverEndsIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deaf{toClose: true}
		defer d.end()
		took, err := stopDeaf(t, d)
		wantParts(t, err, "billing", `did not close its channel of ["orders"]`)
		if took > 20*time.Second {
			t.Errorf("Run returned after %v, want at most 20s", took)
		}
	})
}
