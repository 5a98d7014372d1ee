package ordering

import (
	"slices"
	"strings"

	"github.com/headrace-go/headrace/internal/flight"
)

// lanes decides which delivery runs next. It is a state machine without goroutine, channel or clock;
// the intake calls it under its mutex and does what it says.
//
// A delivery waits behind the head of its lane, or is ready, or runs, or was dropped: taken out
// without having run. A lane has at most one head, which is ready or runs. Ready deliveries run in
// the order in which they became ready. A source counts what it holds until finish or forget.
//
// One that runs may rest: it keeps its lane, but another may run in its place. It has to be roused to go
// on, and then comes before those that are ready.
type lanes struct {
	concurrency int
	paused      bool
	allowed     int // of those that are ready, during a pause

	// ended says that a delivery was taken away while it waited: it is dropped when its turn comes.
	ended func(*delivery) bool

	byKey   map[laneKey]*lane
	ready   fifo
	running list
	resting int         // of those that run
	roused  []*delivery // of those that rest, the first to go on first
	behind  int         // deliveries behind the heads of lanes
	dropped fifo        // to be given back by the intake, which then calls forget

	// Lanes without deliveries stay for their next one, up to idleLimit, the longest idle first out.
	idle      lane // the root of a ring
	idleCount int
	idleLimit int
}

// source is where deliveries come from: the part of a subscription that the lanes know.
type source struct {
	window  int
	held    int  // deliveries that are neither finished nor forgotten
	stopped bool // no delivery of it starts any more
	peek    bool // one more may be read even during a pause
}

// lane holds the deliveries of one key in order of arrival.
type lane struct {
	key        laneKey
	head       *delivery // ready or running; nil: the lane is idle
	queue      fifo      // behind the head
	prev, next *lane     // in the ring of idle lanes
}

func newLanes(concurrency, idleLimit int, ended func(*delivery) bool) *lanes {
	l := &lanes{concurrency: concurrency, idleLimit: idleLimit, ended: ended, byKey: map[laneKey]*lane{}}
	l.idle.prev, l.idle.next = &l.idle, &l.idle
	return l
}

// room reports whether s may hold one more delivery.
func (l *lanes) room(s *source) bool {
	return s.held < s.window && !s.stopped && (!l.paused || l.allowed > l.ready.n || s.peek)
}

// admit takes in d at the end of the lane k, or of no lane.
func (l *lanes) admit(d *delivery, k laneKey, ordered bool) {
	d.sub.held++
	d.sub.peek = false
	if !ordered {
		l.ready.push(d)
		return
	}
	ln := l.byKey[k]
	if ln == nil {
		ln = l.open(k)
	}
	d.lane = ln
	if ln.head != nil {
		ln.queue.push(d)
		l.behind++
		return
	}
	if ln.next != nil {
		l.unlinkIdle(ln)
	}
	ln.head = d
	l.ready.push(d)
}

// next returns the delivery to run next, or nil if there is none or nothing may start. One that was roused
// goes on even during a pause: it has begun. So do as many others as are allowed.
func (l *lanes) next() *delivery {
	if l.running.n-l.resting >= l.concurrency {
		return nil
	}
	if len(l.roused) > 0 {
		d := l.roused[0]
		l.wake(d)
		return d
	}
	if l.paused && l.allowed == 0 {
		return nil
	}
	d := l.ready.pop()
	if d == nil {
		return nil
	}
	if l.paused {
		l.allowed--
	}
	l.running.add(d)
	d.running = true
	return d
}

// finish ends the run of d and makes the next of its lane ready; but if d comes again, those behind it are dropped.
func (l *lanes) finish(d *delivery) {
	if d.resting {
		l.wake(d)
	}
	l.running.remove(d)
	d.running = false
	d.sub.held--
	if l.comesAgain(d) {
		l.dropBehind(d.lane)
		return
	}
	l.promote(d.lane)
}

// comesAgain tells that d, which has run, was given back without a verdict, and not because it was taken away or its source stopped.
func (l *lanes) comesAgain(d *delivery) bool {
	if d.sub.stopped || l.ended(d) {
		return false
	}
	return d.Settlement() == flight.Released
}

// rest lets another delivery run in the place of d.
func (l *lanes) rest(d *delivery) {
	d.resting = true
	l.resting++
}

// rouse lets next return d, which rests, when there is a place again.
func (l *lanes) rouse(d *delivery) { l.roused = append(l.roused, d) }

func (l *lanes) wake(d *delivery) {
	d.resting = false
	l.resting--
	if i := slices.Index(l.roused, d); i >= 0 {
		l.roused = slices.Delete(l.roused, i, i+1)
	}
}

// recall drops d, which next returned but nobody has begun to run.
func (l *lanes) recall(d *delivery) {
	l.running.remove(d)
	d.running = false
	l.dropped.push(d)
	l.promote(d.lane)
}

// forget ends the account of a dropped delivery.
func (l *lanes) forget(d *delivery) { d.sub.held-- }

// stop lets no more deliveries of s start. Those that are ready are dropped at once. Those behind one
// that runs are dropped when that one has finished: given back before, they could overtake it in
// another process.
func (l *lanes) stop(s *source) {
	s.stopped = true
	l.dropReady(func(d *delivery) bool { return &d.sub.source == s })
}

// drop drops every delivery that has not started and that match says. What match says must be stopped
// or ended, so that promote drops it too.
func (l *lanes) drop(match func(*delivery) bool) {
	l.dropReady(match) // first: a lane is given back in its order
	for _, ln := range l.byKey {
		for n := ln.queue.n; n > 0; n-- {
			d := ln.queue.pop()
			if match(d) {
				l.behind--
				l.dropped.push(d)
			} else {
				ln.queue.push(d)
			}
		}
	}
}

func (l *lanes) dropReady(match func(*delivery) bool) {
	var kept fifo
	old := l.ready
	l.ready = fifo{} // for those that promote makes ready: these are neither stopped nor ended
	for d := old.pop(); d != nil; d = old.pop() {
		if match(d) {
			l.dropped.push(d)
			l.promote(d.lane)
		} else {
			kept.push(d)
		}
	}
	kept.append(l.ready)
	l.ready = kept
}

// dropBehind drops all that is behind the head of ln, which has gone.
func (l *lanes) dropBehind(ln *lane) {
	if ln == nil {
		return
	}
	l.behind -= ln.queue.n
	l.dropped.append(ln.queue)
	ln.head, ln.queue = nil, fifo{}
	l.linkIdle(ln)
}

// promote makes the next delivery of ln its head, and drops those that must not run any more.
func (l *lanes) promote(ln *lane) {
	if ln == nil {
		return
	}
	for ln.head = ln.queue.pop(); ln.head != nil; ln.head = ln.queue.pop() {
		l.behind--
		if !ln.head.sub.stopped && !l.ended(ln.head) {
			l.ready.push(ln.head)
			return
		}
		l.dropped.push(ln.head)
	}
	l.linkIdle(ln)
}

// open makes the lane k, out of an idle one if there are enough of them.
func (l *lanes) open(k laneKey) *lane {
	// The key may be a piece of a payload, which the lane must not keep in memory.
	k.key = strings.Clone(k.key)
	ln := l.idle.next
	if l.idleCount < l.idleLimit || ln == &l.idle {
		ln = new(lane)
	} else {
		delete(l.byKey, ln.key)
		l.unlinkIdle(ln)
	}
	ln.key = k
	l.byKey[k] = ln
	return ln
}

func (l *lanes) linkIdle(ln *lane) {
	last := l.idle.prev
	ln.prev, ln.next = last, &l.idle
	last.next, l.idle.prev = ln, ln
	l.idleCount++
	if l.idleCount > l.idleLimit {
		oldest := l.idle.next
		l.unlinkIdle(oldest)
		delete(l.byKey, oldest.key)
	}
}

func (l *lanes) unlinkIdle(ln *lane) {
	ln.prev.next, ln.next.prev = ln.next, ln.prev
	ln.prev, ln.next = nil, nil
	l.idleCount--
}
