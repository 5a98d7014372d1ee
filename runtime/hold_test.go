package runtime_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/runtime"
)

// timingOut gives a broker the patience of RabbitMQ: 80 % of it is 24 min.
func timingOut(b brokers.Broker) brokers.Broker {
	caps := b.Capabilities()
	caps.Patience, caps.ExtendsPatience, caps.PatienceLimit = 30*time.Minute, false, 0
	return capable{b, caps}
}

// The time of a hold began with the handler. A message that had waited before that was held beyond the server's patience, which closed the
// channel under all handlers.
func TestHoldCountsFromTheArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *runtime.Config) {
			c.Broker = timingOut(c.Broker)
			c.Timeout = runtime.Off
		})
		var second atomic.Int32
		ended := make(chan time.Time, 1)
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", func(ctx context.Context, o order) error {
			switch {
			case o.ID == "1":
				time.Sleep(10 * time.Minute)
			case second.Add(1) == 1:
				<-ctx.Done()
				ended <- time.Now()
				return ctx.Err()
			}
			return nil
		})
		b.publish("orders", placed(t, "1"), placed(t, "2"))
		arrived := time.Now()
		b.start()
		until(t, "the hold has ended", time.Hour, func() bool { return len(ended) > 0 })
		if held := (<-ended).Sub(arrived).Round(time.Second); held != 24*time.Minute {
			t.Errorf("the second message was held for %v since it arrived, want 24m", held)
		}
		until(t, "both are handled", time.Minute, func() bool { return c.Stats().Effects == 2 })
		b.mustStop()
	})
}

func TestWhatWaitsThroughAPauseIsGivenBackInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broker settlements
		b := newBench(t, func(c *runtime.Config) {
			broker.Broker = timingOut(c.Broker)
			c.Broker, c.Concurrency = &broker, 1
		})
		gate, began := make(chan struct{}), make(chan struct{}, 3)
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", func(context.Context, order) error {
			began <- struct{}{}
			<-gate
			return nil
		})
		for _, id := range []string{"1", "2", "3"} {
			b.publish("orders", placed(t, id, event.WithKey(id)))
		}
		b.start()
		<-began
		synctest.Wait()
		c.Pause("operator")
		close(gate)
		time.Sleep(23 * time.Minute)
		if got := broker.released.Load(); got != 2 {
			t.Errorf("%d deliveries were given back within 23 minutes, want the 2 that wait", got)
		}
		c.Resume("operator")
		until(t, "all are handled", time.Minute, func() bool { return c.Stats().Effects == 3 })
		b.mustStop()
	})
}

// A stock adapter waits for a verdict. When its message's hold ended there was none: nobody was told, and nothing more came, without an error.
func TestEndOfAHoldReachesAnAdapterWithoutRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deaf{messages: make(chan *message.Message, 2), closed: make(chan struct{})}
		defer d.end()
		b := newBench(t, func(c *runtime.Config) {
			d.Broker = timingOut(c.Broker)
			c.Broker, c.Timeout = d, runtime.Off
		})
		first, second := placed(t, "1"), placed(t, "2")
		d.messages <- first
		d.messages <- second
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", func(ctx context.Context, o order) error {
			if o.ID == "1" {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		b.start()
		until(t, "the next one is handled", time.Hour, func() bool { return c.Stats().Effects == 1 })
		select {
		case <-first.Nacked():
		default:
			t.Error("the first message was not nacked")
		}
		b.mustStop()
	})
}
