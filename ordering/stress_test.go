package ordering_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/ordering"
)

// TestHostileSchedule runs many keys on a real router with random errors, panics, pauses and
// deliveries taken away, and drains at a random moment. Every delivery that was read must have been
// settled at most once; none may overlap or overtake another one of its key; and what the drain left
// must be released.
func TestHostileSchedule(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const keys, n = 30, 3000
	cfg := ordering.Config{
		Window:      1 + rng.IntN(200),
		CancelGrace: time.Minute,
	}
	cfg.Concurrency = 1 + rng.IntN(cfg.Window)
	cfg.Successors = rng.IntN(2) == 0
	intake := newIntake(t, cfg)
	src := newSource()
	type lane struct {
		busy atomic.Bool
		last atomic.Int64
	}
	lanes := make([]lane, keys)
	var all []*sent
	choice := make([]int, n)
	for i := range n {
		k := int(float64(keys) * rng.Float64() * rng.Float64()) // some hotter than others
		d := src.push("orders", fmt.Sprint(k), fmt.Sprint(i))[0]
		d.cancelled = rng.IntN(20) == 0
		choice[i] = rng.IntN(20)
		all = append(all, d)
	}
	var ran atomic.Int64
	drainAt := int64(rng.IntN(n))
	drainNow := make(chan struct{})
	router := runRouter(t, intake, src, func(msg *message.Message) error {
		var i int
		if _, err := fmt.Sscan(msg.UUID, &i); err != nil {
			return err
		}
		var k int
		if _, err := fmt.Sscan(msg.Metadata.Get("key"), &k); err != nil {
			return err
		}
		ln := &lanes[k]
		if ln.busy.Swap(true) {
			t.Errorf("key %d overlaps at %d", k, i)
		}
		defer ln.busy.Store(false)
		if last := ln.last.Swap(int64(i) + 1); last > int64(i) {
			t.Errorf("key %d: %d came after %d", k, i, last-1)
		}
		if ran.Add(1) == drainAt {
			close(drainNow)
		}
		switch choice[i] {
		case 0, 1:
			return errTest
		case 2:
			panic("boom")
		case 3:
			all[i].cancel()
			return msg.Context().Err()
		case 4:
			runtime.Gosched()
		case 5:
			<-time.After(time.Duration(i%100) * time.Microsecond)
		}
		return nil
	})

	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, reason := range []string{"a", "b"} {
		wg.Go(func() {
			for {
				intake.Pause(reason)
				intake.Stats()
				<-time.After(50 * time.Microsecond)
				intake.Resume(reason)
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Microsecond):
				}
			}
		})
	}
	select {
	case <-drainNow:
	case <-time.After(time.Second): // fewer ran: the rest was cancelled
	}
	// One of the three ways to end, or all of them at once.
	how := rng.IntN(4)
	if how != 1 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(3))*time.Millisecond)
			defer cancel()
			var drain *ordering.DrainError
			if err := intake.Drain(ctx); err != nil && (!errors.As(err, &drain) || drain.Held > 0 || drain.Unclosed != nil) {
				t.Errorf("Drain() = %v", err)
			}
		})
	}
	if how != 2 {
		wg.Go(func() {
			if err := router.Close(); err != nil {
				t.Errorf("router.Close() = %v", err)
			}
		})
	}
	close(stop)
	wg.Wait()
	if err := router.Close(); err != nil {
		t.Errorf("router.Close() = %v", err)
	}

	taken := int(src.taken.Load())
	for _, d := range all[:taken] {
		switch got := d.settlement(); got {
		case "acked", "nacked", "released":
		default:
			t.Errorf("%v of %d taken was %s", d, taken, got)
		}
	}
	for _, d := range all[min(taken+1, n):] {
		wantSettled(t, "unsettled", d)
	}
	if got := intake.Stats(); got.InFlight+got.Waiting+got.Lanes > 0 {
		t.Errorf("Stats() = %+v, want all zero", got)
	}
}
