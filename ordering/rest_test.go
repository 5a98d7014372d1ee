package ordering_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/ordering"
)

// restRig has one place. The handler of "tired" sleeps for a minute before it waits for its gate.
func restRig(t *testing.T, slept *bool) *rig {
	r := newRig(t, ordering.Config{Concurrency: 1, CancelGrace: time.Second})
	handler := r.handler
	r.handler = func(msg *message.Message) ([]*message.Message, error) {
		if msg.UUID == "tired" {
			r.note("+tired")
			ctx := msg.Context()
			if *slept = flight.From(ctx).Sleep(ctx, time.Minute); !*slept {
				return nil, errors.New("not tried again")
			}
			r.note("awake")
		}
		return handler(msg)
	}
	return r
}

func TestRestingDeliveryKeepsItsLaneAndNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slept bool
		r := restRig(t, &slept)
		r.push("orders", "k", "tired", "behind")
		r.push("orders", "a", "a")
		r.push("orders", "b", "b")
		r.subscribe("orders")
		r.wantEvents("+tired", "+a") // a has its place, behind does not run
		if got := r.intake.Stats(); got.InFlight != 2 || got.Resting != 1 || got.Waiting != 2 {
			t.Errorf("Stats() = %+v, want 2 in flight, 1 of them resting, 2 waiting", got)
		}
		time.Sleep(time.Minute)
		r.wantEvents() // a is still there: there is no place
		r.finish(nil, "a")
		r.wantEvents("-a", "awake", "+tired") // before b, which has not begun
		r.finish(nil, "tired")
		r.wantEvents("-tired", "+b")
		r.finish(nil, "b", "behind")
		r.wantEvents("-b", "+behind", "-behind")
		r.close()
	})
}

func TestRestingDeliveryGoesOnDuringAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slept bool
		r := restRig(t, &slept)
		tired := r.push("orders", "k", "tired")
		r.subscribe("orders")
		r.intake.Pause("operator")
		time.Sleep(time.Minute)
		r.wantEvents("+tired", "awake", "+tired")
		r.finish(nil, "tired")
		wantSettled(t, "acked", tired...)
		r.intake.Resume("operator")
		r.close()
	})
}

// One message in back-off made every shutdown take the whole drain limit, and end with an error.
func TestRestEndsWhenADrainBegins(t *testing.T) {
	for name, busy := range map[string]bool{"while it sleeps": false, "while it waits for a place": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slept := true
				r := restRig(t, &slept)
				tired := r.push("orders", "k", "tired")
				if busy {
					r.push("orders", "a", "a")
				}
				r.subscribe("orders")
				if busy { // tired is awake, and a has the place
					time.Sleep(2 * time.Minute)
				}
				drained := make(chan error, 1)
				began := time.Now()
				go func() { drained <- r.intake.Drain(t.Context()) }()
				synctest.Wait()
				if slept {
					t.Error("Sleep reported that the delivery may go on")
				}
				if busy {
					r.finish(nil, "a")
				}
				if err := <-drained; err != nil {
					t.Errorf("Drain() = %v", err)
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("Drain() took %v", took)
				}
				wantSettled(t, "released", tired...)
				if got := r.intake.Stats(); got.InFlight != 0 || got.Resting != 0 {
					t.Errorf("Stats() = %+v, want nothing left", got)
				}
				r.close()
			})
		})
	}
}
