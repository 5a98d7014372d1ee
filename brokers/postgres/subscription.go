package postgres

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// The settler looks at the oldest held delivery all the time and, when there are more, at all of
// them from time to time: a message has no callback for its ack, and a goroutine for each would cost more.
const (
	scanFast = 500 * time.Microsecond // after a scan that found something
	scanSlow = 10 * time.Millisecond  // after several that found nothing
)

// minRoom and maxRoom bound how many messages are read ahead of their delivery.
const (
	minRoom = 1_000
	maxRoom = 2_000
)

// subscription is one member of a group. One goroutine, run, feeds and settles it; it does no I/O. The keeper writes,
// the fetcher reads, and the housekeeper does what can wait.
type subscription struct {
	broker   *Broker
	topic    string
	consumer string
	group    group
	window   int
	ttl      time.Duration

	out      chan *message.Message
	kick     chan struct{} // something to settle, or news; capacity 1
	keeper   *keeper
	requests chan *request // capacity 1
	pages    chan *page    // capacity 1

	woken    atomic.Bool  // something was committed
	released atomic.Bool  // some held delivery was released
	lag      atomic.Int64 // -1: not known
	covers   atomic.Pointer[[]int16]
	safe     atomic.Int64 // what the proof has found
	void     atomic.Bool  // what it had found is not true any more
	busy     atomic.Bool  // messages were read since the last look

	// The rest is run's own.

	buckets   [buckets]*bucket
	owned     []*bucket // those of buckets that are not nil
	releasing map[lease]struct{}
	until     time.Time // the leases are ours until then
	share     int
	reserve   int // deliveries that are kept for each bucket
	turn      int // where take begins

	room          int
	buffered      int
	bufferedBytes int
	asked, more   bool
	poll          time.Duration
	pollAt        time.Time
	askAgain      time.Time
	rescanned     time.Time
	trouble       trouble

	next  *hold   // taken, and not yet received by anybody
	held  []*hold // in order of delivery, without those that were settled
	scan  time.Duration
	timer *time.Timer
	rings time.Time // when timer rings; zero: not set
}

// hold is one delivery that was not settled yet.
type hold struct {
	delivery brokers.Delivery
	sub      *subscription
	entry    *entry
	bucket   *bucket
	msg      *message.Message
	cancel   context.CancelFunc
	released atomic.Bool
}

func newSubscription(b *Broker, want brokers.Subscription, topic string, g group) *subscription {
	s := &subscription{
		broker:    b,
		topic:     topic,
		consumer:  want.Consumer,
		group:     g,
		window:    want.Window,
		ttl:       b.config.LeaseTTL,
		out:       make(chan *message.Message),
		kick:      make(chan struct{}, 1),
		requests:  make(chan *request, 1),
		pages:     make(chan *page, 1),
		releasing: make(map[lease]struct{}),
		room:      min(max(2*want.Window, minRoom), maxRoom),
		poll:      b.config.PollMin,
		scan:      scanFast,
		rescanned: time.Now(),
	}
	s.lag.Store(-1)
	s.keeper = newKeeper(s)
	return s
}

// wake says that something was committed.
func (s *subscription) wake() {
	s.woken.Store(true)
	ring(s.kick)
}

// run is the subscription's goroutine.
func (s *subscription) run(ctx context.Context) {
	s.timer = time.NewTimer(time.Hour)
	s.timer.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work, endWork := context.WithCancel(context.WithoutCancel(ctx)) // of the statements that read
	stopKeeper := make(chan struct{})
	var readers, keeper sync.WaitGroup
	keeper.Go(func() { s.keeper.run(stopKeeper) })
	readers.Go(func() { s.fetchLoop(work) })
	readers.Go(func() { s.housekeep(ctx, work) })

	if err := s.serve(ctx); err != nil {
		s.broker.log.ErrorContext(ctx, "postgres: a subscription has ended", "consumer", s.consumer, "topic", s.topic, "error", err)
	}

	s.timer.Stop()
	cancel()
	close(s.requests)
	late := time.AfterFunc(grace, endWork) // to cancel a statement costs the pool a connection
	readers.Wait()
	late.Stop()
	endWork()
	s.end()
	s.broker.exit(s)
	close(stopKeeper)
	keeper.Wait()
	close(s.out)
}

// serve delivers and settles until ctx ends.
func (s *subscription) serve(ctx context.Context) error {
	var scanAt time.Time
	for ctx.Err() == nil {
		now := time.Now()
		if err := s.hear(now); err != nil {
			return err
		}
		var again time.Time
		if s.next == nil && len(s.held) < s.window && s.keeper.backlog() < maxUnremoved+s.window {
			s.next, again = s.take(ctx, now)
		}
		s.ask(now)
		var (
			out           chan<- *message.Message
			msg           *message.Message
			acked, nacked <-chan struct{}
		)
		if s.next != nil {
			out, msg = s.out, s.next.msg
		}
		if len(s.held) > 0 {
			acked, nacked = s.held[0].msg.Acked(), s.held[0].msg.Nacked()
		}
		if len(s.held) > 1 && scanAt.IsZero() {
			scanAt = now.Add(s.scan)
		}
		s.setTimer(scanAt, again, s.lookAt(now), s.until)
		select {
		case out <- msg:
			s.held = append(s.held, s.next)
			s.next = nil
		case <-acked:
			s.settleFront()
		case <-nacked:
			s.settleFront()
		case p := <-s.pages:
			s.add(p, time.Now())
		case <-s.kick:
			if s.released.Swap(false) {
				s.settleAll(s.settle)
			}
		case <-s.timer.C:
			s.rings = time.Time{}
			if !scanAt.IsZero() && !time.Now().Before(scanAt) {
				scanAt = time.Time{}
				if s.settleAll(s.settle) {
					s.scan = scanFast
				} else {
					s.scan = min(2*s.scan, scanSlow)
				}
			}
		case <-ctx.Done():
		}
	}
	return nil
}

// lookAt is when to look for messages next; zero: when something else happens.
func (s *subscription) lookAt(now time.Time) time.Time {
	switch {
	case s.asked || len(s.owned) == 0 || s.buffered > s.room/2 || s.bufferedBytes >= pageBytes:
		return time.Time{}
	case s.more || s.woken.Load():
		return later(now, s.askAgain)
	}
	return later(s.pollAt, s.askAgain)
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// setTimer makes the timer ring at the earliest of the times that are not zero, or before it.
func (s *subscription) setTimer(times ...time.Time) {
	var at time.Time
	for _, t := range times {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if at.IsZero() || !s.rings.IsZero() && !at.Before(s.rings) {
		return
	}
	s.rings = at
	s.timer.Reset(time.Until(at))
}

// take makes a delivery of the next message that may go, or tells when there may be one.
func (s *subscription) take(ctx context.Context, now time.Time) (*hold, time.Time) {
	free := s.window - len(s.held)
	if s.reserve > 0 {
		for _, b := range s.owned {
			free -= max(0, s.reserve-b.held)
		}
	}
	var again time.Time
	for i := range s.owned {
		b := s.owned[(s.turn+i)%len(s.owned)]
		// What is kept for other buckets is not for this one, so that a key whose handler is stuck does not take all.
		if len(b.queue) == 0 || b.leaving || free <= 0 && b.held >= s.reserve {
			continue
		}
		e, at := b.next(now)
		if e != nil {
			s.turn = (s.turn + i + 1) % len(s.owned)
			s.buffered--
			s.bufferedBytes -= e.size()
			b.held++
			return s.deliver(ctx, b, e), time.Time{}
		}
		if !at.IsZero() && (again.IsZero() || at.Before(again)) {
			again = at
		}
	}
	return nil, again
}

func (s *subscription) deliver(ctx context.Context, b *bucket, e *entry) *hold {
	e.deliveries++
	h := &hold{sub: s, entry: e, bucket: b}
	h.delivery = brokers.Delivery{
		Topic:       s.topic,
		Incarnation: s.group.incarnation,
		Partition:   int32(b.bucket),
		Offset:      e.id,
		Key:         e.key,
		Time:        e.stored,
		Count:       e.deliveries,
		Release:     h.release,
	}
	// The payload is a copy, so that a later delivery does not see what a handler did to it.
	h.msg = message.NewMessage("", bytes.Clone(e.payload))
	if err := decode(h.msg, e.uuid, e.metadata); err != nil {
		h.delivery.DecodeError = err
		h.delivery.Headers = []brokers.Header{{Key: rawMetadata, Value: []byte(e.metadata)}}
	}
	ctx, h.cancel = context.WithCancel(ctx)
	h.msg.SetContext(brokers.WithDelivery(ctx, &h.delivery))
	return h
}

// rawMetadata is the header that holds metadata that cannot be decoded.
const rawMetadata = "metadata"

func (h *hold) release() {
	h.released.Store(true)
	h.sub.released.Store(true)
	ring(h.sub.kick)
}

// settleFront settles the oldest deliveries as far as they can be.
func (s *subscription) settleFront() {
	n := 0
	for n < len(s.held) && s.settle(s.held[n]) {
		s.held[n] = nil
		n++
	}
	s.held = s.held[n:]
}

// settleAll settles with settle whatever it can, and reports whether that was anything.
func (s *subscription) settleAll(settle func(*hold) bool) bool {
	kept := s.held[:0]
	for _, h := range s.held {
		if !settle(h) {
			kept = append(kept, h)
		}
	}
	settled := len(kept) < len(s.held)
	clear(s.held[len(kept):])
	s.held = kept
	return settled
}

// settle does what was decided of h, if it was.
func (s *subscription) settle(h *hold) bool {
	select {
	case <-h.msg.Acked():
		h.cancel()
		s.keeper.ack(h.bucket.lease, h.entry)
		s.let(h.bucket)
		return true
	case <-h.msg.Nacked():
	default:
		if !h.released.Load() {
			return false
		}
	}
	h.cancel()
	s.keeper.giveBack(h.bucket.lease, h.entry)
	h.entry.notBefore = time.Now().Add(adapter.NackDelay(s.broker.config.NackDelay, s.broker.config.MaxNackDelay, h.entry.deliveries))
	s.putBack(h)
	return true
}

func (s *subscription) putBack(h *hold) {
	if s.buckets[h.bucket.bucket] == h.bucket {
		h.bucket.add(h.entry)
		s.buffered++
		s.bufferedBytes += h.entry.size()
	}
	s.let(h.bucket)
}

// let ends a delivery of b.
func (s *subscription) let(b *bucket) {
	b.held--
	if b.leaving && b.held == 0 {
		s.giveUp(b)
	}
}

// giveUp gives the lease of b back, which has no delivery.
func (s *subscription) giveUp(b *bucket) {
	s.drop(b)
	s.releasing[b.lease] = struct{}{}
	s.keeper.release(b.lease)
}

// end settles what was decided and gives the rest back: the keeper then stores it.
func (s *subscription) end() {
	if s.next != nil {
		s.next.cancel()
		s.next = nil
	}
	s.settleAll(func(h *hold) bool {
		if !s.settle(h) {
			h.cancel()
			s.keeper.giveBack(h.bucket.lease, h.entry)
		}
		return true
	})
}

// hear takes the keeper's news, and fences the subscription when its leases have run out.
func (s *subscription) hear(now time.Time) error {
	if t := s.keeper.news(); t != nil {
		if t.gone {
			return errUnregistered
		}
		s.apply(t)
	}
	if !s.until.IsZero() && !now.Before(s.until) {
		// Another process may have the buckets by now. The database refuses what we would write for them; here the
		// handlers are told.
		for len(s.owned) > 0 {
			s.drop(s.owned[0])
		}
		s.until = time.Time{}
		s.cover()
	}
	return nil
}

// apply makes the buckets what the database says.
func (s *subscription) apply(t *tenure) {
	var wanted [buckets]*lease
	for i := range t.leases {
		l := &t.leases[i]
		if l.bucket < 0 || l.bucket >= buckets {
			continue // it was written by hand
		}
		if _, going := s.releasing[*l]; !going {
			wanted[l.bucket] = l
		}
	}
	for l := range s.releasing {
		if !contains(t.leases, l) {
			delete(s.releasing, l)
		}
	}
	for n := range s.buckets {
		b := s.buckets[n]
		if b != nil && (wanted[n] == nil || *wanted[n] != b.lease) {
			s.drop(b)
			b = nil
		}
		if b == nil && wanted[n] != nil {
			b = &bucket{lease: *wanted[n], take: firstTake}
			s.buckets[n] = b
			s.owned = append(s.owned, b)
			s.more = true
		}
	}
	s.until, s.share = t.until, t.share
	s.shareOut()
	s.cover()
}

func contains(list []lease, l lease) bool {
	for i := range list {
		if list[i] == l {
			return true
		}
	}
	return false
}

// shareOut gives up what is above the share: first what has no delivery now.
func (s *subscription) shareOut() {
	surplus := len(s.owned) - s.share
	for _, b := range s.owned {
		b.leaving = false
	}
	var idle []*bucket
	for _, busy := range []bool{false, true} {
		for i := len(s.owned) - 1; i >= 0 && surplus > 0; i-- {
			b := s.owned[i]
			if b.leaving || (b.held > 0) != busy {
				continue
			}
			b.leaving = true
			surplus--
			if !busy {
				idle = append(idle, b)
			}
		}
	}
	for _, b := range idle {
		s.giveUp(b)
	}
	s.reserve = 0
	if n := len(s.owned); n > 1 {
		s.reserve = s.window / 2 / n
	}
}

// drop forgets b: it is not ours any more. Its deliveries are nobody's to settle, and their contexts end.
func (s *subscription) drop(b *bucket) {
	s.buckets[b.bucket] = nil
	for i := range s.owned {
		if s.owned[i] == b {
			s.owned = append(s.owned[:i], s.owned[i+1:]...)
			break
		}
	}
	s.buffered -= len(b.queue)
	for _, e := range b.queue {
		s.bufferedBytes -= e.size()
	}
	b.queue, b.delayed = nil, 0
	if s.next != nil && s.next.bucket == b {
		s.next.cancel()
		s.next = nil
	}
	if b.held == 0 {
		return
	}
	s.settleAll(func(h *hold) bool {
		if h.bucket != b {
			return false
		}
		select {
		case <-h.msg.Acked():
			// The database decides whether it still counts.
			s.keeper.ack(b.lease, h.entry)
		default:
		}
		h.cancel()
		return true
	})
	b.held = 0
}

// cover tells the housekeeper what to count.
func (s *subscription) cover() {
	numbers := make([]int16, len(s.owned))
	for i, b := range s.owned {
		numbers[i] = b.bucket
	}
	s.covers.Store(&numbers)
}
