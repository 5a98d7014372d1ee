package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headrace-go/headrace/internal/flight"
)

// collector brings messages together that are ready at the same moment, and runs each group in one
// transaction. V is what a member brings along: its handler, or its event.
//
// A member waits in its own goroutine. A worker, of which there are at most Parallel and none while nothing
// waits, takes what is there, opens the transaction and runs the handlers in it, one after another: a change of
// goroutines for each would cost more than many a statement. A panic or Goexit of one rolls the group back; it goes
// its way when its message runs alone, in its own goroutine.
type collector[Tx, V any] struct {
	store  GroupStore[Tx]
	config GroupConfig

	// alone makes the handler of a member that runs alone.
	alone func(V) func(context.Context, Tx) error
	// turns runs the handlers of those that were claimed, by turn.
	turns func(fresh []*member[Tx, V], turn turnFunc[Tx, V]) error

	members sync.Pool

	mu      sync.Mutex
	queue   []*member[Tx, V]
	workers int
	limit   int           // members of a group now: fewer after a split, Max again after success
	plain   int           // messages that still run without a group, while limit is 1
	filled  chan struct{} // tells a worker that lingers that limit members wait
}

// Groups below smallestGroup are not worth what their failures cost: then plainFor x Max messages run without.
const (
	smallestGroup = 4
	plainFor      = 4
)

// turnFunc runs f in the group's transaction for m. whole: f runs for all of them, with
// a context that ends when that of any of them does.
type turnFunc[Tx, V any] func(m *member[Tx, V], f func(context.Context, Tx) error, whole bool) error

// atOnce is how many members are told before they may run: all of a large group together would stand in line for the locks of whatever they
// do next, and the next group would not fill.
const atOnce = 16

// state is where a member is. It is guarded by the collector's mutex.
type state uint8

const (
	queued  state = iota // it may leave
	joined               // its group is being claimed, or runs others: it may leave, and the group is rolled back
	started              // its handler was started, or it was told how it ended: it stays
	shared               // a handler that runs for all of them has its event: it stays, and ends that one's context
	left                 // nobody waits for it
)

// member is one message that waits for its group.
type member[Tx, V any] struct {
	ctx    context.Context
	claim  Claim
	value  V
	since  time.Time
	state  state
	cancel context.CancelCauseFunc // of its group

	ran    bool          // its handler was started in a group; the worker's until it has told it what to do
	signal chan order    // from the worker; room for one
	done   chan struct{} // to the worker: it has run alone; room for one
}

// order tells a member what to do.
type order uint8

const (
	runAlone   order = iota // and return what comes of it
	runAndTell              // run alone, tell done
	committed               // return
	duplicate               // return
)

var (
	errLeft  = errors.New("inbox: a message of the group left it: its context has ended")
	errEnded = errors.New("inbox: a handler of the group panicked or ended its goroutine")
)

func newCollector[Tx, V any](store GroupStore[Tx], config GroupConfig, alone func(V) func(context.Context, Tx) error, turns func([]*member[Tx, V], turnFunc[Tx, V]) error) *collector[Tx, V] {
	c := &collector[Tx, V]{store: store, config: config, alone: alone, turns: turns, limit: config.Max, filled: make(chan struct{}, 1)}
	c.members.New = func() any {
		return &member[Tx, V]{signal: make(chan order, 1), done: make(chan struct{}, 1)}
	}
	return c
}

// maxConcurrency is how many messages can be under way: a group fills while others run.
func (c *collector[Tx, V]) maxConcurrency() int { return c.config.Max * (c.config.Parallel + 1) }

// once is Store.Once for one member. again makes its value anew, for its second run; nil: it is the same.
func (c *collector[Tx, V]) once(ctx context.Context, f *flight.Flight, claim Claim, value V, again func() (V, error)) (bool, error) {
	var outputs uint32
	if f != nil {
		outputs = f.Outputs()
	}
	m := c.members.Get().(*member[Tx, V])
	m.ctx, m.claim, m.value = ctx, claim, value
	c.enqueue(m)

	ended := ctx.Done()
	for {
		what, told := m.await(ended)
		switch {
		case !told:
			if c.leave(m) {
				return false, fmt.Errorf("inbox: wait for the group of %q for %q: %w", claim.ID, claim.Consumer, ctx.Err())
			}
			ended = nil
		case what == runAlone, what == runAndTell:
			ran := m.ran
			if what == runAndTell {
				defer func() { m.done <- struct{}{} }() // after a panic or Goexit as well
			} else {
				c.free(m)
			}
			if ran {
				if f != nil {
					f.Rewind(outputs)
				}
				if again != nil {
					var err error
					if value, err = again(); err != nil {
						return false, err
					}
				}
			}
			return c.store.Once(ctx, claim, c.alone(value))
		default:
			c.free(m)
			return what == committed, nil
		}
	}
}

// waitingFrame is a quarter of the stack that a message needs.
const waitingFrame = 4 << 10

// await waits for what to do; it is not told if ended was closed before that.
//
// Its frame is large on purpose. The garbage collector halves a stack that is used to less than a quarter: without the frame those of all that
// wait, and the next message of each grows it again. Each time what is on it is copied and every frame walked.
//
//go:noinline
func (m *member[Tx, V]) await(ended <-chan struct{}) (what order, told bool) {
	var frame [waitingFrame]byte
	select {
	case what = <-m.signal:
		told = true
	case <-ended:
	}
	runtime.KeepAlive(&frame)
	return what, told
}

// free keeps m for another message. Nobody may know it any more.
func (c *collector[Tx, V]) free(m *member[Tx, V]) {
	var none V
	m.ctx, m.value, m.cancel, m.state, m.ran = nil, none, nil, queued, false
	c.members.Put(m)
}

func (c *collector[Tx, V]) enqueue(m *member[Tx, V]) {
	if c.config.Linger > 0 {
		m.since = time.Now()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m.state = queued
	c.queue = append(c.queue, m)
	if c.workers < c.config.Parallel {
		c.workers++
		go c.work()
	}
	if len(c.queue) >= c.limit {
		select {
		case c.filled <- struct{}{}:
		default:
		}
	}
}

// leave takes m out if its handler has not begun, and reports whether it did. Its group is then rolled back,
// since its claim is among the others'. One whose handler has returned stays: its effect may be committed.
func (c *collector[Tx, V]) leave(m *member[Tx, V]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m.state {
	case queued:
		c.queue = slices.DeleteFunc(c.queue, func(o *member[Tx, V]) bool { return o == m })
	case joined:
		m.cancel(errLeft)
	case shared:
		m.cancel(errLeft)
		return false
	default:
		return false
	}
	m.state = left
	return true
}

// start makes m stay, as how says. It is false if it has left.
func (c *collector[Tx, V]) start(m *member[Tx, V], how state) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.state == left {
		return false
	}
	m.state = how
	return true
}

// work runs groups until nothing waits. When a handler ends the goroutine, another one goes on.
func (c *collector[Tx, V]) work() {
	returned := false
	defer func() {
		if !returned {
			go c.work()
		}
	}()
	w := worker[Tx, V]{collector: c}
	for w.take() {
		w.run()
	}
	returned = true
}

// worker is one of a collector's; its slices serve one group after another.
type worker[Tx, V any] struct {
	*collector[Tx, V]
	members []*member[Tx, V] // in the order of their arrival
	sorted  []*member[Tx, V] // by claim
	fresh   []*member[Tx, V]
	claims  []Claim
	cancel  context.CancelCauseFunc
	ctx     context.Context
}

// take makes the next group. It is false when nothing waits; the worker has ended then.
func (w *worker[Tx, V]) take() bool {
	// What is ready to run gets to the queue first: that is what "ready now" means.
	runtime.Gosched()
	w.linger()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		w.workers--
		return false
	}
	// The spans of BEGIN and COMMIT are the first one's, but not its end.
	w.ctx, w.cancel = context.WithCancelCause(context.WithoutCancel(w.queue[0].ctx))
	n := min(len(w.queue), w.limit)
	w.members = append(w.members[:0], w.queue[:n]...)
	w.queue = slices.Delete(w.queue, 0, n)
	for _, m := range w.members {
		m.state, m.cancel = joined, w.cancel
	}
	return true
}

// sort sets sorted and claims, and puts back what is a second copy of another: it waits for the outcome of that
// one, in the next group.
func (w *worker[Tx, V]) sort() {
	w.sorted = append(w.sorted[:0], w.members...)
	slices.SortFunc(w.sorted, func(a, b *member[Tx, V]) int { return compareClaims(a.claim, b.claim) })
	w.claims = w.claims[:0]
	var copies []*member[Tx, V]
	w.sorted = slices.DeleteFunc(w.sorted, func(m *member[Tx, V]) bool {
		if n := len(w.claims); n > 0 && w.claims[n-1] == m.claim {
			copies = append(copies, m)
			return true
		}
		w.claims = append(w.claims, m.claim)
		return false
	})
	if len(copies) == 0 {
		return
	}
	w.members = slices.DeleteFunc(w.members, func(m *member[Tx, V]) bool { return slices.Contains(copies, m) })
	w.mu.Lock()
	defer w.mu.Unlock()
	copies = slices.DeleteFunc(copies, func(m *member[Tx, V]) bool { return m.state == left })
	for _, m := range copies {
		m.state = queued
	}
	w.queue = append(copies, w.queue...)
}

// linger waits until the group is full or the first member has waited long enough.
func (w *worker[Tx, V]) linger() {
	if w.config.Linger == 0 {
		return
	}
	var timer *time.Timer
	for {
		w.mu.Lock()
		enough := len(w.queue) == 0 || len(w.queue) >= w.limit
		var wait time.Duration
		if !enough {
			wait = time.Until(w.queue[0].since.Add(w.config.Linger))
		}
		w.mu.Unlock()
		if enough || wait <= 0 {
			return
		}
		if timer == nil {
			timer = time.NewTimer(wait)
			defer timer.Stop()
		} else {
			timer.Reset(wait)
		}
		select {
		case <-w.filled:
		case <-timer.C:
		}
	}
}

// run runs one group.
func (w *worker[Tx, V]) run() {
	defer w.cancel(nil)
	if len(w.members) > 1 {
		w.sort()
	}
	if len(w.members) == 1 {
		w.single(w.members[0])
		return
	}
	err := errEnded
	defer func() {
		if recover() != nil { // the store has rolled back; what panics again alone does so in its own goroutine
			err = errEnded
		}
		w.settle(err)
	}()
	err = w.store.OnceGroup(w.ctx, w.claims, w.handle)
}

// settle tells the members what has become of the group.
func (w *worker[Tx, V]) settle(err error) {
	w.resize(err == nil)
	what := committed
	if err != nil {
		what = runAlone
	}
	defer w.tell(what) // whatever the application does
	if err != nil && w.config.OnSplit != nil {
		defer func() { _ = recover() }() // as the field's comment says
		w.config.OnSplit(w.ctx, len(w.claims), err)
	}
}

// tell tells the members what to do.
func (w *worker[Tx, V]) tell(what order) {
	w.mu.Lock()
	for i, m := range w.members {
		switch { // the duplicates have been told; they are nil
		case m == nil:
		case m.state == left:
			w.members[i] = nil
		default:
			m.state = started
		}
	}
	w.mu.Unlock()
	for i, m := range w.members {
		if m != nil { // once it was told it may not be touched
			m.signal <- what
		}
		if i%atOnce == atOnce-1 {
			runtime.Gosched()
		}
	}
	clear(w.members)
	clear(w.sorted)
	clear(w.fresh)
}

// single runs a member without a group. Where groups are wanted it waits for it: meanwhile one comes together.
func (w *worker[Tx, V]) single(m *member[Tx, V]) {
	w.members[0] = nil
	if !w.start(m, started) {
		return
	}
	if w.withoutGroups() {
		m.signal <- runAlone
		return
	}
	m.signal <- runAndTell
	<-m.done
	w.free(m)
}

// handle is what runs in the transaction.
func (w *worker[Tx, V]) handle(ctx context.Context, tx Tx, isNew []bool) error {
	w.fresh = w.fresh[:0]
	for i, m := range w.sorted {
		if !isNew[i] {
			w.members[slices.Index(w.members, m)] = nil
			if w.start(m, started) { // whatever becomes of the group, this one was committed before
				m.signal <- duplicate
			}
		}
	}
	for _, m := range w.members {
		if m != nil {
			w.fresh = append(w.fresh, m)
		}
	}
	if len(w.fresh) == 0 {
		return nil
	}
	return w.turns(w.fresh, func(m *member[Tx, V], f func(context.Context, Tx) error, whole bool) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		own := ctx
		if whole {
			if !w.startAll() {
				return errLeft
			}
		} else {
			if !w.start(m, started) {
				return errLeft
			}
			m.ran = true
			own = m.ctx
			if ctx != w.ctx { // a mapped store's Advance looks there
				own = &memberContext{Context: m.ctx, group: ctx}
			}
		}
		if err := f(own, tx); err != nil {
			return err
		}
		return own.Err()
	})
}

// startAll makes all members stay: a handler has their events.
func (w *worker[Tx, V]) startAll() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.fresh {
		m.ran = true
		if m.state == left {
			return false
		}
		m.state = shared
	}
	return true
}

// resize makes groups smaller while they fail: what always fails must not make everything run twice.
func (w *worker[Tx, V]) resize(ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch size := len(w.claims); {
	case ok && size >= w.limit:
		w.limit = min(w.config.Max, 2*w.limit)
	case !ok:
		if w.limit = min(w.limit, size) / 2; w.limit < smallestGroup {
			w.limit, w.plain = 1, plainFor*w.config.Max
		}
	}
}

// withoutGroups tells whether groups are given up for now, and counts one message of those that go without.
func (w *worker[Tx, V]) withoutGroups() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.limit > 1 {
		return false
	}
	if w.plain--; w.plain <= 0 {
		w.limit = min(w.config.Max, 2*smallestGroup)
	}
	return true
}

func compareClaims(a, b Claim) int {
	if c := strings.Compare(a.Consumer, b.Consumer); c != 0 {
		return c
	}
	return strings.Compare(a.ID, b.ID)
}

// memberContext is a member's own context with what a store put into the group's.
type memberContext struct {
	context.Context
	group context.Context
}

func (c *memberContext) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.group.Value(key)
}
