package adapter

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

// A message has no callback for its ack. The runtime rings when it has settled one; on a user's own router
// nobody does, so the oldest delivery is watched all the time and the others are looked at from time to time.
const (
	scanFast = time.Millisecond      // after a look that found something
	scanSlow = 10 * time.Millisecond // after several that found nothing
)

// Outcome is what became of a delivery.
type Outcome uint8

// The outcomes. Undecided ones are only returned by [Settler.Close].
const (
	Undecided Outcome = iota
	Acked
	Nacked
	Released
)

// Held is one delivery that was handed over, with what the adapter needs to settle it.
type Held[E any] struct {
	Entry    E
	Message  *message.Message
	Delivery brokers.Delivery
	Outcome  Outcome

	cancel     context.CancelFunc
	released   atomic.Bool
	delay      atomic.Int64 // after a release: for so long nobody gets it
	prev, next *Held[E]     // in the settler's list, while it is there
	listed     bool
}

// Delay is for how long nobody may get a released delivery; 0: no such wish.
func (h *Held[E]) Delay() time.Duration { return time.Duration(h.delay.Load()) }

// decide sets the outcome if there is one.
func (h *Held[E]) decide() bool {
	select {
	case <-h.Message.Acked():
		h.Outcome = Acked
		return true
	default:
	}
	select {
	case <-h.Message.Nacked():
		h.Outcome = Nacked
		return true
	default:
	}
	if h.released.Load() {
		h.Outcome = Released
		return true
	}
	return false
}

// Settler holds the deliveries of one subscription, at most window of them, and finds out what became of each. It
// has one goroutine, in which it calls settle with all that was decided since the last call: the longer
// settle takes, the more it gets at once.
type Settler[E any] struct {
	// Delays says that the adapter obeys [Held.Delay]. Set it before the first Hold.
	Delays bool

	window int
	settle func([]*Held[E])
	kick   chan struct{} // capacity 1: something was settled, released or added
	room   chan struct{} // capacity 1: there may be room
	stop   chan struct{}
	done   chan struct{}

	mu          sync.Mutex
	first, last *Held[E] // what is held, in the order of Hold
	held        int
	marked      []*Held[E] // somebody says that it is settled
	settling    int        // given to settle, which has not returned
	reserved    int        // settled, and to come again
}

// NewSettler returns a settler that runs until Close. settle must not keep the slice. A delivery counts
// against window until settle has returned.
func NewSettler[E any](window int, settle func([]*Held[E])) *Settler[E] {
	s := &Settler[E]{
		window: window,
		settle: settle,
		kick:   make(chan struct{}, 1),
		room:   make(chan struct{}, 1),
		stop:   make(chan struct{}),
		done:   make(chan struct{}),
	}
	go s.run()
	return s
}

// Room returns for how many deliveries there is room. If there is none it waits until deliveries were settled or ctx has
// ended: then it can be 0 still, since settled ones can have been reserved, see Reserve. Only one goroutine calls it, the one
// that calls Hold.
func (s *Settler[E]) Room(ctx context.Context) int {
	if n := s.window - s.Len(); n > 0 {
		return n
	}
	select {
	case <-s.room:
	case <-ctx.Done():
	}
	return max(s.window-s.Len(), 0)
}

// Reserve keeps n places for deliveries that settle has got and that the adapter itself will hand over again; a
// negative n gives places back. A nacked message so keeps its place, and nothing overtakes it where the window is one.
func (s *Settler[E]) Reserve(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved += n
	s.makeRoom()
}

// Len is the number of deliveries that are held, and of places that are reserved.
func (s *Settler[E]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held + s.settling + s.reserved
}

// Hold takes msg in, before it is handed over. It puts d into the message's context, which ends when the delivery
// is settled or ctx ends, and sets its Release and Settled.
func (s *Settler[E]) Hold(ctx context.Context, msg *message.Message, d brokers.Delivery, entry E) *Held[E] {
	h := &Held[E]{Entry: entry, Message: msg, Delivery: d}
	h.Delivery.Settled = func() { s.mark(h) }
	h.Delivery.Release = func() {
		h.released.Store(true)
		s.mark(h)
	}
	if s.Delays {
		h.Delivery.Delay = func(d time.Duration) bool {
			h.delay.Store(int64(max(d, 1)))
			h.Delivery.Release()
			return true
		}
	}
	ctx, h.cancel = context.WithCancel(ctx)
	msg.SetContext(brokers.WithDelivery(ctx, &h.Delivery))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link(h)
	if s.held <= 2 {
		s.ring() // to watch the first, and to look at others
	}
	return h
}

// Held returns the deliveries that are held and were not given to settle, oldest first.
func (s *Settler[E]) Held() []*Held[E] {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Held[E], 0, s.held)
	for h := s.first; h != nil; h = h.next {
		all = append(all, h)
	}
	return all
}

// Drop lets go of h, which the broker has given to another: its context ends, and what becomes of it has no effect. It
// reports whether h was held.
func (s *Settler[E]) Drop(h *Held[E]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !h.listed {
		return false
	}
	s.unlink(h)
	h.cancel()
	s.makeRoom()
	return true
}

// Close stops the settler when settle has had all that was decided by then, and returns the rest, oldest first, whose
// contexts have ended. What is settled from now on has no effect. Call it once.
func (s *Settler[E]) Close() []*Held[E] {
	close(s.stop)
	<-s.done
	rest := s.Held()
	for _, h := range rest {
		h.cancel()
	}
	return rest
}

// mark has h looked at.
func (s *Settler[E]) mark(h *Held[E]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !h.listed {
		return
	}
	s.marked = append(s.marked, h)
	s.ring()
}

func (s *Settler[E]) ring() {
	select {
	case s.kick <- struct{}{}:
	default: // it rings already
	}
}

func (s *Settler[E]) run() {
	defer close(s.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	scan := scanFast
	for {
		var acked, nacked <-chan struct{}
		var look <-chan time.Time
		first, more := s.oldest()
		if first != nil {
			acked, nacked = first.Message.Acked(), first.Message.Nacked()
			if more {
				timer.Reset(scan)
				look = timer.C
			}
		}
		select {
		case <-s.kick:
			s.collect(s.takeMarked())
		case <-acked:
			s.collect(s.front())
		case <-nacked:
			s.collect(s.front())
		case <-look:
			if s.collectAll() {
				scan = scanFast
			} else {
				scan = min(2*scan, scanSlow)
			}
		case <-s.stop:
			s.collectAll()
			return
		}
	}
}

// oldest returns the oldest delivery, and whether there are more.
func (s *Settler[E]) oldest() (h *Held[E], more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first, s.held > 1
}

func (s *Settler[E]) takeMarked() []*Held[E] {
	s.mu.Lock()
	defer s.mu.Unlock()
	marked := s.marked
	s.marked = nil
	return marked
}

// front returns the oldest deliveries, as far as they were decided one after the other.
func (s *Settler[E]) front() []*Held[E] {
	s.mu.Lock()
	defer s.mu.Unlock()
	var decided []*Held[E]
	for h := s.first; h != nil && h.decide(); h = h.next {
		decided = append(decided, h)
	}
	return decided
}

// collectAll looks at everything, and reports whether it found what was decided.
func (s *Settler[E]) collectAll() bool {
	return s.collect(s.Held())
}

// collect settles those of some deliveries that were decided, and reports whether there were any.
func (s *Settler[E]) collect(some []*Held[E]) bool {
	decided := some[:0]
	s.mu.Lock()
	for _, h := range some {
		if h.listed && h.decide() {
			s.unlink(h)
			decided = append(decided, h)
		}
	}
	s.settling = len(decided)
	s.mu.Unlock()
	if len(decided) == 0 {
		return false
	}
	s.settle(decided)
	for _, h := range decided {
		h.cancel()
	}
	s.mu.Lock()
	s.settling = 0
	s.mu.Unlock()
	s.makeRoom()
	return true
}

func (s *Settler[E]) makeRoom() {
	select {
	case s.room <- struct{}{}:
	default:
	}
}

func (s *Settler[E]) link(h *Held[E]) {
	h.listed, h.prev = true, s.last
	if s.last == nil {
		s.first = h
	} else {
		s.last.next = h
	}
	s.last = h
	s.held++
}

func (s *Settler[E]) unlink(h *Held[E]) {
	if h.prev == nil {
		s.first = h.next
	} else {
		h.prev.next = h.next
	}
	if h.next == nil {
		s.last = h.prev
	} else {
		h.next.prev = h.prev
	}
	h.listed, h.prev, h.next = false, nil, nil
	s.held--
}
