package ordering

import (
	"context"
	"reflect"
	"time"

	"github.com/headrace-go/headrace/internal/flight"
)

// delivery is a flight and its place in the intake, in one allocation. It is the context of its own
// view, as the flight is. The links belong to [lanes] and are guarded by the intake's mutex.
type delivery struct {
	flight.Flight

	sub        *subscription
	lane       *lane // nil: unordered
	prev, next *delivery
	awake      chan struct{} // closed when it may go on; nil unless it was roused

	// started is when it was handed to the router, since the intake's epoch.
	started time.Duration

	running, resting bool // resting: it runs, but in nobody's way

	// Only the goroutine that runs it uses these. entered says that the middleware has seen it. router is set if it runs in the goroutine of
	// another one before it: the router has not seen its view, and what the router put into the context of the one that it has seen holds for
	// both, since they are of one subscription.
	entered bool
	router  context.Context
}

type deliveryKey struct{}

// Value finds the delivery, what the router put in, its flight, then what the adapter put in.
func (d *delivery) Value(key any) any {
	if _, ok := key.(deliveryKey); ok {
		return d
	}
	if d.router != nil && reflect.TypeOf(key) == routerKey {
		return d.router.Value(key)
	}
	return d.Flight.Value(key)
}

// deliveryOf returns the delivery that ctx belongs to, or nil.
func deliveryOf(ctx context.Context) *delivery {
	if d, ok := ctx.(*delivery); ok {
		return d
	}
	// A router that decorates an already decorated subscriber adds its values on top.
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	return d
}

// ended reports whether the broker has taken the delivery away or its subscription was cancelled.
func (d *delivery) ended() bool { return d.Context.Err() != nil }

// fail settles a delivery that was not handled: it is given back if its context is done, since then
// nobody failed (invariant I5), or if its subscription is stopped, since a nack could make the broker send it
// here again; and nacked if not. A settlement made before wins.
func (d *delivery) fail() {
	if d.ended() || d.IsDraining() {
		d.Release()
		return
	}
	d.Nack()
}

// Rest is for a delivery whose handler waits to be tried again: until Rouse another one may run in its place.
// It keeps its lane.
func (d *delivery) Rest() {
	in := d.sub.intake
	in.mu.Lock()
	defer in.mu.Unlock()
	in.lanes.rest(d)
	in.dispatch()
}

// Rouse waits until there is a place for the delivery again, before any that has not begun. It reports false
// if ctx ended, or a drain began, before that.
func (d *delivery) Rouse(ctx context.Context) bool {
	in, awake := d.sub.intake, make(chan struct{})
	in.mu.Lock()
	d.awake = awake
	in.lanes.rouse(d)
	in.dispatch()
	in.mu.Unlock()
	select {
	case <-awake:
		return true
	case <-ctx.Done():
	case <-d.sub.stop:
	}
	// What is left to do needs no place. If it gets one all the same, it is given back at the end.
	return false
}

// Draining is closed when no attempt is begun any more: the delivery's subscription was stopped.
func (d *delivery) Draining() <-chan struct{} { return d.sub.stop }
