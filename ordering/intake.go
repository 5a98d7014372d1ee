package ordering

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Intake lets deliveries through to a router: in order per key, a bounded number at once, and none
// while it is paused or drained. See the package comment for how its two halves go together.
//
// One intake serves any number of subscriptions of one consumer. They share the lanes, the
// concurrency, the pause and the drain; each has a window of its own, so that a stuck topic does not
// stop another one from being read. An intake that was drained stays so.
//
// All methods are safe for concurrent use.
type Intake struct {
	cfg   Config
	epoch time.Time // for the start times of deliveries, with its monotonic reading

	mu       sync.Mutex
	lanes    *lanes
	subs     map[*subscription]struct{}
	reasons  map[string]struct{}
	draining bool
	drained  chan struct{} // closed when the first Drain has returned; nil before it is called
}

// New returns an intake. Its error names the field of cfg that is wrong, and the value.
func New(cfg Config) (*Intake, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Intake{
		cfg:     cfg,
		epoch:   time.Now(),
		lanes:   newLanes(cfg.Concurrency, cfg.Window, (*delivery).ended),
		subs:    map[*subscription]struct{}{},
		reasons: map[string]struct{}{},
	}, nil
}

// Decorate is a Watermill message.SubscriberDecorator. Add it to the router as the last one: views
// have no Acked and Nacked channels, so a decorator that waits for these has to see the broker's
// message. It is also fine to decorate the subscriber itself before it is given to the router.
//
// Whatever reads from the decorated subscriber must pass every message to [Intake.Middleware]; one
// that does not come back from there keeps its lane.
//
// The decorated subscriber's Subscribe does not end with its context: that only starts a drain, so
// that the acks of running handlers are not lost. Its Close does the same, waits for it, and then
// closes sub. Both cancel the handlers' contexts when Config.DrainTimeout has passed; but while
// [Intake.Drain] runs, they leave the limit to it.
func (in *Intake) Decorate(sub message.Subscriber) (message.Subscriber, error) {
	if sub == nil {
		return nil, errors.New("ordering: Decorate: the subscriber is nil")
	}
	return &subscriber{intake: in, inner: sub}, nil
}

// Pause stops deliveries from being read and started; those that run go on. A subscription from which deliveries were
// taken away still reads one, so that its end is noticed. It stays until Resume is called with the same reason, and as long as any
// other reason is left.
func (in *Intake) Pause(reason string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, known := in.reasons[reason]; known {
		return
	}
	in.reasons[reason] = struct{}{}
	in.lanes.paused, in.lanes.allowed = true, 0
}

// Allow lets the next n deliveries be read and started although the intake is paused for that reason. It
// replaces what was allowed before. While there is another reason too, or without this one, it does nothing; and
// a further Pause ends it.
func (in *Intake) Allow(reason string, n int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, paused := in.reasons[reason]; !paused || len(in.reasons) > 1 {
		return
	}
	in.lanes.allowed = max(n, 0)
	in.dispatch()
	for s := range in.subs {
		s.wake()
	}
}

// Resume takes back Pause(reason). Without such a pause it does nothing.
func (in *Intake) Resume(reason string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.reasons, reason)
	if len(in.reasons) > 0 || !in.lanes.paused {
		return
	}
	in.lanes.paused, in.lanes.allowed = false, 0
	in.dispatch()
	for s := range in.subs {
		s.wake()
	}
}

// Stats is the state of an intake at one moment.
type Stats struct {
	// InFlight deliveries were handed to the router and are not settled; Resting of them wait to be tried
	// again. Waiting ones were not handed to it. Lanes is how many keys they belong to.
	InFlight, Resting, Waiting, Lanes int

	// OldestStart is when the delivery that has been in flight for longest was handed to the router;
	// the zero time if none is.
	OldestStart time.Time

	// OldestStored is when the broker stored the oldest of those that are in flight or could be, as far as it
	// tells; else the zero time.
	OldestStored time.Time

	// HottestKey is the key of the lane that holds most deliveries, HottestDepth how many these are.
	// Of equal lanes it may be any.
	HottestKey   string
	HottestDepth int

	// Paused are the reasons for which the intake is paused, sorted. The caller owns the slice.
	Paused []string

	// Draining says that Drain was called.
	Draining bool
}

// Stats returns the intake's state. Its cost grows with the number of lanes and deliveries, of which there
// are at most a few windows.
func (in *Intake) Stats() Stats {
	in.mu.Lock()
	defer in.mu.Unlock()
	l := in.lanes
	st := Stats{
		InFlight: l.running.n,
		Resting:  l.resting,
		Waiting:  l.behind + l.ready.n,
		Paused:   slices.Sorted(maps.Keys(in.reasons)),
		Draining: in.draining,
	}
	if d := l.running.first; d != nil {
		st.OldestStart = in.epoch.Add(d.started)
	}
	for _, first := range [...]*delivery{l.running.first, l.ready.first} {
		for d := first; d != nil; d = d.next {
			if at := d.Delivery.Time; !at.IsZero() && (st.OldestStored.IsZero() || at.Before(st.OldestStored)) {
				st.OldestStored = at
			}
		}
	}
	for _, ln := range l.byKey {
		if ln.head == nil {
			continue
		}
		st.Lanes++
		if depth := 1 + ln.queue.n; depth > st.HottestDepth {
			st.HottestKey, st.HottestDepth = ln.key.key, depth
		}
	}
	return st
}

// dispatch hands what may run to the router, and wakes what may go on. in.mu is held.
func (in *Intake) dispatch() {
	for d := in.next(); d != nil; d = in.next() {
		// Never blocks: the channel has room for as many as can run.
		d.sub.out <- &d.View
	}
}

// next returns a delivery that may run, and wakes what may go on before it. in.mu is held.
func (in *Intake) next() *delivery {
	for d := in.lanes.next(); d != nil; d = in.lanes.next() {
		if d.awake == nil {
			d.started = time.Since(in.epoch)
			return d
		}
		close(d.awake)
		d.awake = nil
	}
	return nil
}

// finish takes d, which is settled, out of its lane. If the caller goes on, it returns a delivery to go on with, or nil if there is none.
func (in *Intake) finish(d *delivery, goOn bool) (successor *delivery) {
	in.mu.Lock()
	in.lanes.finish(d)
	if goOn {
		successor = in.successor(d.sub)
	}
	in.dispatch()
	pull := d.sub.pull != nil && d.sub.hasRoom() // if not, whoever makes room will look
	d.sub.changed()
	dropped := in.takeDropped()
	in.mu.Unlock()
	in.giveBack(dropped)
	if pull {
		if next := d.sub.pullSome(goOn && successor == nil); next != nil {
			successor = next
		}
	}
	return successor
}

// takeDropped returns the deliveries that giveBack must be called with, outside of in.mu, which is held.
func (in *Intake) takeDropped() fifo {
	q := in.lanes.dropped
	in.lanes.dropped = fifo{}
	return q
}

// giveBack gives back dropped deliveries. They count as held until that is done, so that their
// subscription is not cancelled before. An adapter's Release may take locks of its own; in.mu is not held.
func (in *Intake) giveBack(dropped fifo) {
	if dropped.n == 0 {
		return
	}
	for d := dropped.first; d != nil; d = d.next {
		d.GiveBack()
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for d := dropped.pop(); d != nil; d = dropped.pop() {
		in.lanes.forget(d)
		d.sub.changed()
	}
}

// errNotDecorated is for a router that has the middleware without the decorator.
func errNotDecorated(msg *message.Message, consumer string) error {
	return fmt.Errorf("ordering: message %q did not come through the intake of %q: decorate its subscriber with Intake.Decorate", msg.UUID, consumer)
}
