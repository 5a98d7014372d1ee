package ordering_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/headrace-go/headrace/ordering"
)

// deaf is an adapter that stops to listen for acks when the context of Subscribe ends, as stock
// adapters do, and counts what it heard.
type deaf struct {
	*source
	heard atomic.Int32
}

func (d *deaf) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := d.source.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for msg := range in {
			out <- msg
			select {
			case <-msg.Acked():
				d.heard.Add(1)
			case <-ctx.Done():
			}
		}
	}()
	return out, nil
}

// Close while handlers ran: the adapter had stopped to listen, the acks were lost, and the effects
// were made again after the restart.
func TestS1AcksOfRunningHandlersSurviveTheStop(t *testing.T) {
	for name, stop := range map[string]func(*message.Router, context.CancelFunc) error{
		"router.Close":          func(r *message.Router, _ context.CancelFunc) error { return r.Close() },
		"context of router.Run": func(_ *message.Router, cancel context.CancelFunc) error { cancel(); return nil },
		"both at the same time": func(r *message.Router, cancel context.CancelFunc) error { go cancel(); return r.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				intake := newIntake(t, ordering.Config{})
				adapter := &deaf{source: newSource()}
				d := adapter.push("orders", "k", "1")[0]
				router := message.NewDefaultRouter(watermill.NopLogger{})
				router.AddSubscriberDecorators(intake.Decorate)
				router.AddMiddleware(intake.Middleware)
				router.AddConsumerHandler("h", "orders", adapter, func(msg *message.Message) error {
					time.Sleep(10 * time.Second)
					return msg.Context().Err()
				})
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				ran := make(chan error, 1)
				go func() { ran <- router.Run(ctx) }()
				synctest.Wait()
				if err := stop(router, cancel); err != nil {
					t.Errorf("stop: %v", err)
				}
				if err := <-ran; err != nil {
					t.Errorf("router.Run() = %v", err)
				}
				wantSettled(t, "acked", d)
				if got := adapter.heard.Load(); got != 1 {
					t.Errorf("the adapter heard %d acks, want 1", got)
				}
			})
		})
	}
}

// publisher is a slow one that fails when it is closed under a publish.
type publisher struct {
	delay     time.Duration
	err       error
	closed    atomic.Bool
	published atomic.Int32
}

func (p *publisher) Publish(_ string, msgs ...*message.Message) error {
	time.Sleep(p.delay)
	if p.closed.Load() {
		return errors.New("publisher is closed")
	}
	if p.err == nil {
		p.published.Add(int32(len(msgs)))
	}
	return p.err
}

func (p *publisher) Close() error { p.closed.Store(true); return nil }

// routerWith runs a router whose handler publishes one message for each it gets.
func routerWith(t *testing.T, intake *ordering.Intake, sub message.Subscriber, pub message.Publisher) *message.Router {
	router := message.NewDefaultRouter(watermill.NopLogger{})
	router.AddSubscriberDecorators(intake.Decorate)
	router.AddMiddleware(intake.Middleware)
	router.AddHandler("h", "orders", sub, "out", pub, message.PassthroughHandler)
	start(t, router)
	return router
}

// The router publishes outputs after the middleware has returned: neither the ack nor the lane's next
// may come before.
func TestOutputsArePublishedBeforeTheAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, pub := newSource(), &publisher{delay: time.Second}
		all := src.push("orders", "k", "1", "2")
		router := routerWith(t, newIntake(t, ordering.Config{}), src, pub)
		time.Sleep(500 * time.Millisecond)
		wantSettled(t, "unsettled", all...)
		time.Sleep(time.Second)
		wantSettled(t, "acked", all[0])
		wantSettled(t, "unsettled", all[1])
		if got := pub.published.Load(); got != 1 {
			t.Errorf("published %d, want 1", got)
		}
		time.Sleep(time.Second)
		wantSettled(t, "acked", all...)
		if err := router.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
}

func TestOutputsThatCannotBePublishedNack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, pub := newSource(), &publisher{err: errTest}
		d := src.push("orders", "k", "1")[0]
		router := routerWith(t, newIntake(t, ordering.Config{}), src, pub)
		synctest.Wait()
		wantSettled(t, "nacked", d)
		if err := router.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
}

// A publisher was closed under a running handler.
func TestS2PublisherIsNotClosedUnderAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, pub := newSource(), &publisher{delay: 5 * time.Second}
		d := src.push("orders", "k", "1")[0]
		router := routerWith(t, newIntake(t, ordering.Config{}), src, pub)
		synctest.Wait()
		if err := router.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
		wantSettled(t, "acked", d)
		if got := pub.published.Load(); got != 1 {
			t.Errorf("published %d, want 1", got)
		}
	})
}

// Invariant I3 on a real router and a broker that keeps no order between its goroutines but sends in
// turn: of one key nothing overlaps, and all of it takes effect in order of arrival.
func TestI3EqualKeysNeverOverlapAndKeepTheirOrder(t *testing.T) {
	const keys, perKey = 20, 200
	src := newSource()
	var last [keys]atomic.Int64
	var busy [keys]atomic.Bool
	for n := range perKey {
		for k := range keys {
			src.push("orders", fmt.Sprint(k), fmt.Sprintf("%d/%d", k, n))
		}
	}
	done := make(chan struct{})
	var ran atomic.Int64
	router := runRouter(t, newIntake(t, ordering.Config{}), src, func(msg *message.Message) error {
		var k int
		var n int64
		if _, err := fmt.Sscanf(msg.UUID, "%d/%d", &k, &n); err != nil {
			return err
		}
		if busy[k].Swap(true) {
			t.Errorf("key %d overlaps", k)
		}
		if got := last[k].Swap(n + 1); got != n {
			t.Errorf("key %d: %d came after %d", k, n, got-1)
		}
		busy[k].Store(false)
		if ran.Add(1) == keys*perKey {
			close(done)
		}
		return nil
	})
	<-done
	if err := router.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

// The subscriber may also be decorated before it is given to the router, which then adds its own values
// on top of the view's context.
func TestDecoratedBeforeTheRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		intake := newIntake(t, ordering.Config{})
		src := newSource()
		all := src.push("orders", "k", "1", "2", "3")
		sub, err := intake.Decorate(src)
		if err != nil {
			t.Fatal(err)
		}
		router := message.NewDefaultRouter(watermill.NopLogger{})
		h := router.AddConsumerHandler("h", "orders", sub, func(msg *message.Message) error {
			if got := message.HandlerNameFromCtx(msg.Context()); got != "h" {
				t.Errorf("handler name = %q, want h", got)
			}
			if msg.UUID == "2" {
				return errTest
			}
			return nil
		})
		h.AddMiddleware(intake.Middleware)
		start(t, router)
		synctest.Wait()
		if err := intake.Drain(t.Context()); err != nil {
			t.Errorf("Drain() = %v", err)
		}
		if err := router.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
		wantSettled(t, "acked", all[0], all[2])
		wantSettled(t, "nacked", all[1])
	})
}

// A router over gochannel, which sends again at once what was nacked.
func TestGochannelRouterRetriesByNack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
		var runs atomic.Int32
		router := runRouter(t, newIntake(t, ordering.Config{}), broker, func(*message.Message) error {
			if runs.Add(1) < 5 {
				return errTest
			}
			return nil
		})
		if err := broker.Publish("orders", message.NewMessage("1", nil)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := runs.Load(); got != 5 {
			t.Errorf("ran %d times, want 5", got)
		}
		if err := router.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
}
