package runtime_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/runtime"
)

// timingOut gives a broker the patience of RabbitMQ: 80 % of it is 24 min.
func timingOut(b brokers.Broker) brokers.Broker {
	caps := b.Capabilities()
	caps.Patience, caps.ExtendsPatience, caps.PatienceLimit = 30*time.Minute, false, 0
	return capable{b, caps}
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
