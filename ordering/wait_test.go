package ordering_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/ordering"
)

// RabbitMQ closes the channel of whoever holds a delivery for too long, also one that waits for its turn: in a pause all that was held was lost
// every half hour, and the running handlers with it.
func TestWhatHasWaitedForTooLongIsGivenBack(t *testing.T) {
	for _, paused := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, ordering.Config{Concurrency: 1, MaxWait: time.Minute})
			a, b := r.push("orders", "a", "a1", "a2"), r.push("orders", "b", "b1", "b2")
			r.subscribe("orders")
			r.wantEvents("+a1")
			time.Sleep(50 * time.Second)
			// It has time left, but must not run before b1 comes again.
			b = append(b, r.push("orders", "b", "b3")...)
			young := r.push("orders", "c", "c1")
			synctest.Wait()
			if paused {
				r.intake.Pause("outage")
			}
			wantSettled(t, "unsettled", b...)
			time.Sleep(15 * time.Second)
			wantSettled(t, "released", b...)
			wantSettled(t, "unsettled", young...)
			// Given back now, another process could run it while a1 still runs here.
			wantSettled(t, "unsettled", a...)
			r.finish(nil, "a1")
			wantSettled(t, "acked", a[0])
			wantSettled(t, "released", a[1])
			r.intake.Resume("outage")
			r.finish(nil, "c1")
			wantSettled(t, "acked", young...)
			r.wantEvents("-a1", "+c1", "-c1")
			r.close()
		})
	}
}

// A handler gave its message back before the broker's patience was over; the next of its key ran before it came again.
func TestI3WhatIsGivenBackTakesTheRestOfItsLaneAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{Concurrency: 1})
		a, b := r.push("orders", "a", "a1", "a2", "a3"), r.push("orders", "b", "b1")
		gate := make(chan struct{})
		r.handler = func(msg *message.Message) ([]*message.Message, error) {
			r.note("+" + msg.UUID)
			if msg.UUID == "a1" {
				<-gate
				flight.From(msg.Context()).Release()
				return nil, errTest
			}
			return nil, nil
		}
		r.subscribe("orders")
		close(gate)
		r.wantEvents("+a1", "+b1")
		wantSettled(t, "released", a...)
		wantSettled(t, "acked", b...)
		r.push("orders", "a", "a4")
		r.wantEvents("+a4")
		r.close()
	})
}

// A stock adapter cannot take a message back without a verdict: it waited for one for ever.
func TestWhatCannotBeReleasedIsNacked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{Concurrency: 1, MaxWait: time.Minute})
		r.bare = true
		all := r.push("orders", "a", "1", "2", "3")
		r.subscribe("orders")
		r.intake.Pause("outage")
		time.Sleep(50 * time.Second)
		last := r.push("orders", "a", "4")
		time.Sleep(15 * time.Second)
		wantSettled(t, "nacked", all[1:]...)
		r.finish(nil, "1")
		wantSettled(t, "acked", all[0])
		r.close()
		wantSettled(t, "unsettled", last...) // a stop ends the wait
	})
}

// An adapter had held messages back during a pause: they had little time left when they came to their lanes.
func TestTimeInTheAdapterCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{Concurrency: 1, MaxWait: time.Minute})
		r.age = 30 * time.Second
		all := r.push("orders", "a", "1", "2")
		r.subscribe("orders")
		r.wantEvents("+1")
		time.Sleep(32 * time.Second)
		r.finish(nil, "1")
		wantSettled(t, "acked", all[0])
		wantSettled(t, "released", all[1])
		r.close()
	})
}
