package ordering_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/ordering"
)

func TestDrainGivesBackWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{Concurrency: 2})
		running := append(r.push("orders", "a", "a1"), r.push("orders", "b", "b1")...)
		ready := r.push("orders", "c", "c1", "c2")
		behind := r.push("orders", "a", "a2", "a3")
		r.subscribe("orders")
		synctest.Wait()
		unread := r.push("orders", "d", "d1")
		synctest.Wait()
		if got := unread[0].settlement(); got != "unsettled" {
			t.Fatalf("d1 was %s", got)
		}

		drained := make(chan error, 1)
		go func() { drained <- r.intake.Drain(t.Context()) }()
		synctest.Wait()
		wantSettled(t, "released", ready...)
		wantSettled(t, "unsettled", running...)
		// Given back now, another process could run it while a1 still runs here.
		wantSettled(t, "unsettled", behind...)
		r.finish(nil, "a1")
		wantSettled(t, "released", behind...)
		r.finish(nil, "b1")
		wantSettled(t, "acked", running...)
		if err := <-drained; err != nil {
			t.Errorf("Drain() = %v", err)
		}
		if got := r.intake.Stats(); !got.Draining || got.InFlight+got.Waiting != 0 {
			t.Errorf("Stats() = %+v, want drained and empty", got)
		}
		if _, err := r.sub.Subscribe(t.Context(), "orders"); err == nil || !strings.Contains(err.Error(), "the intake is drained") {
			t.Errorf("Subscribe() after Drain() = %v, want an error", err)
		}
		r.close()
		if _, err := r.sub.Subscribe(t.Context(), "orders"); err == nil || !strings.Contains(err.Error(), "the subscriber is closed") {
			t.Errorf("Subscribe() after Close() = %v, want an error", err)
		}
		r.close()
	})
}

// What the router has not begun is given back as well.
func TestDrainRecallsWhatTheRouterHasNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		all := append(r.push("orders", "a", "a1", "a2"), r.push("orders", "b", "b1")...)
		out, err := r.sub.Subscribe(r.ctx, "orders")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := r.intake.Drain(t.Context()); err != nil {
			t.Errorf("Drain() = %v", err)
		}
		wantSettled(t, "released", all...)
		if msg, open := <-out; open {
			t.Errorf("%s came out after the drain", msg.UUID)
		}
		r.close()
	})
}

func TestDrainWhilePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		r.push("orders", "a", "1")
		waiting := r.push("orders", "a", "2")
		r.subscribe("orders")
		r.wantEvents("+1")
		r.intake.Pause("outage")
		drained := make(chan error, 1)
		go func() { drained <- r.intake.Drain(t.Context()) }()
		r.finish(nil, "1")
		if err := <-drained; err != nil {
			t.Errorf("Drain() = %v", err)
		}
		wantSettled(t, "released", waiting...)
		r.close()
	})
}

func TestDrainOfAnIdleIntake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		r.subscribe("orders")
		done, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.intake.Drain(done); err != nil {
			t.Errorf("Drain() under an ended context = %v, want nil: nothing was running", err)
		}
		r.close()
	})
}

// Invariant I5 and fault S4: when the limit passes, the handlers' contexts end, nothing counts as
// failed, and the drain says so.
func TestS4DrainLimitIsAnErrorAndCancelsTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		obedient := r.push("orders", "a", "obedient")
		quick := r.push("orders", "b", "quick")
		r.handler = func(msg *message.Message) ([]*message.Message, error) {
			<-msg.Context().Done()
			if msg.UUID == "quick" { // it had just done its work
				return nil, nil
			}
			return nil, context.Cause(msg.Context())
		}
		r.subscribe("orders")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		err := r.intake.Drain(ctx)
		var drain *ordering.DrainError
		if !errors.As(err, &drain) || drain.Cancelled != 2 || drain.Held != 0 {
			t.Errorf("Drain() = %v, want 2 cancelled and none held", err)
		}
		if got := time.Since(began); got != time.Minute {
			t.Errorf("Drain() took %v, want the limit, 1m", got)
		}
		wantSettled(t, "released", obedient...)
		wantSettled(t, "acked", quick...)
		r.close()
	})
}

// resender delivers its two messages again whenever they were nacked or released, at once.
type resender struct{ deliveries atomic.Int32 }

func (r *resender) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	var wg sync.WaitGroup
	for _, id := range []string{"slow", "fails"} {
		wg.Go(func() {
			for acked := false; !acked && r.deliveries.Load() < 1000; {
				released := make(chan struct{})
				msg := message.NewMessage(id, nil)
				msg.SetContext(brokers.WithDelivery(ctx, &brokers.Delivery{
					Topic: topic, Partition: -1, Offset: -1, Key: []byte(id), Release: func() { close(released) },
				}))
				select {
				case out <- msg:
					r.deliveries.Add(1)
				case <-ctx.Done():
					return
				}
				select {
				case <-msg.Acked():
					acked = true
				case <-msg.Nacked():
				case <-released:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	go func() {
		wg.Wait()
		close(out)
	}()
	return out, nil
}

func (r *resender) Close() error { return nil }

// On stop, deliveries were nacked or given back, and came again at once, until the last handler had
// finished: 155,000 redeliveries in 200 ms.
func TestS5StopDoesNotMakeTheBrokerResend(t *testing.T) {
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, ordering.Config{})
			broker := new(resender)
			sub, err := r.intake.Decorate(broker)
			if err != nil {
				t.Fatal(err)
			}
			r.sub = sub
			r.subscribe("orders")
			synctest.Wait()
			if waits { // a release by the intake instead of a nack
				r.intake.Pause("test")
				r.finish(errTest, "fails")
			}
			drained := make(chan error, 1)
			go func() { drained <- r.intake.Drain(context.WithoutCancel(t.Context())) }()
			synctest.Wait()
			if !waits {
				r.finish(errTest, "fails")
			}
			time.Sleep(time.Second)
			if got := broker.deliveries.Load(); got > 3 {
				t.Errorf("%d deliveries, want at most 3", got)
			}
			r.finish(nil, "slow")
			if err := <-drained; err != nil {
				t.Errorf("Drain() = %v", err)
			}
			r.close()
		})
	}
}

func TestSubscribeContextStartsADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := newRig(t, ordering.Config{DrainTimeout: time.Minute, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		all := r.push("orders", "k", "1", "2")
		r.subscribe("orders")
		r.wantEvents("+1")
		r.stop()
		time.Sleep(30 * time.Second)
		if err := all[0].msg.Context().Err(); err != nil {
			t.Errorf("the running delivery's context has ended: %v", err)
		}
		r.finish(nil, "1")
		wantSettled(t, "acked", all[0])
		wantSettled(t, "released", all[1])
		r.wg.Wait() // the decorated channel is closed
		synctest.Wait()
		if log.Len() > 0 {
			t.Errorf("logged %s", &log)
		}
		r.close()
	})
}

func TestSubscribeContextDrainThatFailsIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := newRig(t, ordering.Config{
			DrainTimeout: time.Minute, CancelGrace: time.Second,
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		r.push("orders", "k", "1")
		r.subscribe("orders")
		r.wantEvents("+1")
		r.stop()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		for _, want := range []string{"1m0s passed", "1 still held", "consumer=test", "topic=orders"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("logged %q, want it to say %q", &log, want)
			}
		}
		r.finish(nil, "1")
		r.close()
	})
}

// A Close, or the end of the router's context, during a Drain would have cut its limit short.
func TestCloseDuringDrainLeavesTheLimitToIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{DrainTimeout: time.Second})
		d := r.push("orders", "k", "1")[0]
		r.subscribe("orders")
		r.wantEvents("+1")
		errs := make(chan error, 2)
		go func() { errs <- r.intake.Drain(t.Context()) }()
		synctest.Wait()
		go func() { errs <- r.sub.Close() }()
		r.stop()
		time.Sleep(time.Hour)
		if err := d.msg.Context().Err(); err != nil {
			t.Errorf("the context has ended: %v", err)
		}
		r.finish(nil, "1")
		for range 2 {
			if err := <-errs; err != nil {
				t.Errorf("Drain or Close = %v", err)
			}
		}
		wantSettled(t, "acked", d)
		r.close()
	})
}

// stubborn closes its channel in Close only, whatever happens to the context.
type stubborn struct{ out chan *message.Message }

func (s stubborn) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return s.out, nil
}
func (s stubborn) Close() error { close(s.out); return nil }

func TestDrainNamesASubscriberThatDoesNotClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		intake := newIntake(t, ordering.Config{CancelGrace: time.Second})
		sub, err := intake.Decorate(stubborn{make(chan *message.Message)})
		if err != nil {
			t.Fatal(err)
		}
		out, err := sub.Subscribe(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		if err := intake.Drain(t.Context()); err == nil || !strings.Contains(err.Error(), `did not close its channel of ["orders"]`) {
			t.Errorf("Drain() = %v, want it to name the topic", err)
		}
		select {
		case <-out:
		default:
			t.Error("the router's channel is open: its loop would not end")
		}
		if err := sub.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
}

// broken is a subscriber whose Subscribe does as f does.
type broken struct {
	f func(context.Context) error
}

func (b broken) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	return nil, b.f(ctx)
}
func (b broken) Close() error { return errTest }

func TestSubscribeErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		intake := newIntake(t, ordering.Config{})
		sub, err := intake.Decorate(broken{func(context.Context) error { return errTest }})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sub.Subscribe(t.Context(), "orders"); !errors.Is(err, errTest) || !strings.Contains(err.Error(), `"orders"`) {
			t.Errorf("Subscribe() = %v, want the cause and the topic", err)
		}
		if err := sub.Close(); !errors.Is(err, errTest) {
			t.Errorf("Close() = %v, want the subscriber's error", err)
		}

		// One that still connects is ended by a drain.
		sub, err = intake.Decorate(broken{func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }})
		if err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 1)
		go func() {
			_, err := sub.Subscribe(context.WithoutCancel(t.Context()), "orders")
			failed <- err
		}()
		synctest.Wait()
		if err := intake.Drain(t.Context()); err != nil {
			t.Errorf("Drain() = %v", err)
		}
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("Subscribe() = %v, want canceled", err)
		}
	})
}

// An adapter's Release may look at the intake, or take a lock that is held by one who does.
func TestReleaseIsCalledWithoutTheIntakesLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{Window: 8, Concurrency: 2})
		r.onRelease = func() { r.intake.Stats() }
		r.handler = func(*message.Message) ([]*message.Message, error) { return nil, nil }
		for i, id := range ids("m", 1000) {
			r.push("orders", "k", id)[0].cancelled = i%2 == 0
		}
		r.subscribe("orders")
		for r.taken.Load() < 500 {
			time.Sleep(time.Millisecond)
		}
		if err := r.intake.Drain(t.Context()); err != nil {
			t.Errorf("Drain() = %v", err)
		}
		r.close()
	})
}
