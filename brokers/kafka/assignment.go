package kafka

import (
	"cmp"
	"context"
	"encoding/hex"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/ordering"
)

// Whoever settles a delivery through the runtime says so with Delivery.Settled. A stock router does not: then the settler watches the
// oldest held delivery and looks at all from time to time. A goroutine for each would cost more.
const (
	scanFast = 500 * time.Microsecond // after a scan that found something
	scanSlow = 10 * time.Millisecond  // after several that found nothing
	scanEach = 4 * time.Microsecond   // more for each that is held, while the window is full
)

const (
	// feedBatch is how many deliveries are handed over before what else there is to do is looked at.
	feedBatch = 64

	// youth is how long a held record may keep what was fetched with it in memory.
	youth = time.Second
)

// partitionID names a partition.
type partitionID struct {
	topic     string
	partition int32
}

// assignment is the time for which a subscription owns a partition. A turn settles what can be and decides what is handed over; one
// goroutine, run, makes them, and so does whoever settles a delivery of a subscription that is pulled from. It ends with freeze.
//
//	buffer (push, by the poller) -> admit: tracker, lanes -> next -> out -> held -> acked: tracker
//	                                                             ^----- back <-' nacked, released
type assignment struct {
	m *member
	partitionID
	topicID     [16]byte        // zeros: not known
	incarnation string          // the same as text
	ctx         context.Context // of its deliveries
	cancel      context.CancelCauseFunc
	share       share

	kick     chan struct{} // something to do; capacity 1
	stopped  atomic.Bool   // hand nothing over any more
	freezing atomic.Bool   // settle nothing any more
	quiet    chan struct{} // closed: stopped, and nothing is held
	frozen   chan struct{} // closed: run has returned
	detach   func() bool

	telling sync.Mutex
	told    []*hold     // that were settled or released, perhaps
	hooked  atomic.Bool // somebody tells what is settled
	asked   []chan<- PartitionStats

	// turns is held during a turn.
	turns sync.Mutex

	mu       sync.Mutex
	buffer   fifo[*kgo.Record]
	bytes    int   // in buffer
	last     int64 // offset of the last that was pushed
	stored   int   // records in buffer and in lanes
	paused   bool  // the client does not fetch it
	tracker  *ordering.Tracker
	skip     sparse
	sent     string // the metadata of the last commit
	tight    bool   // the metadata did not fit
	high     int64  // the end of the partition, as last heard; -1
	position int64  // committed before it was assigned; -1

	// Guarded by turns.
	lanes  lanes
	next   *hold     // taken, and not yet received by anybody
	slot   bool      // there is a slot in the window for next
	again  *hold     // the next redelivery, which has kept its slot
	held   holds     // in order of delivery, without those that were settled
	back   []*hold   // given back, by offset
	backAt time.Time // the first time when one of back may come again, or before
	old    []*hold   // of earlier assignments of the partition
	spare  []*hold   // for told
	dead   bool      // run has ended
	idle   bool      // dropped what was not handed over
	grants []*share  // others who got a slot in this turn
	queued int       // of held, those in the queue of the member; guarded by its mutex
	scan   time.Duration
	scanAt time.Time
	timer  *time.Timer
	rings  time.Time // when timer rings; zero: not set
}

func newAssignment(ctx context.Context, m *member, id partitionID, old []*hold) *assignment {
	a := &assignment{
		m:           m,
		partitionID: id,
		kick:        make(chan struct{}, 1),
		quiet:       make(chan struct{}),
		frozen:      make(chan struct{}),
		last:        -1,
		high:        -1,
		position:    -1,
		lanes:       newLanes(m.limits.key),
		old:         old,
		scan:        scanFast,
	}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	a.share.owner, a.share.ring = a, a.ring
	for _, h := range old {
		a.lanes.addOld(h.key)
	}
	m.budget.join(&a.share)
	a.detach = context.AfterFunc(ctx, a.stop) // the end of the subscription
	return a
}

func (a *assignment) ring() {
	select {
	case a.kick <- struct{}{}:
	default: // a kick is waiting already
	}
}

// push takes what was fetched, of ascending offsets. It does not block. It returns false, and takes nothing, if the offsets went
// back: the log was truncated, or the topic was made anew.
func (a *assignment) push(records []*kgo.Record) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(records) == 0 {
		return true
	}
	if records[0].Offset <= a.last {
		return false
	}
	for _, r := range records {
		a.buffer.push(r)
		a.bytes += size(r)
	}
	a.stored += len(records)
	a.last = records[len(records)-1].Offset
	a.ring()
	return true
}

func size(r *kgo.Record) int { return len(r.Key) + len(r.Value) + 64 }

func (a *assignment) nameIncarnation(topicID [16]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.incarnation == "" && topicID != [16]byte{} {
		a.topicID = topicID
		a.incarnation = hex.EncodeToString(topicID[:])
	}
}

// full reports whether enough is stored.
func (a *assignment) full() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fullLocked()
}

func (a *assignment) fullLocked() bool {
	return a.stored >= a.m.limits.records || a.bytes >= a.m.limits.bytes
}

// pauseIfFull stops the fetches of the partition until half of what is stored was handed over.
func (a *assignment) pauseIfFull() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fullLocked() && !a.paused {
		a.paused = true
		a.m.client.PauseFetchPartitions(map[string][]int32{a.topic: {a.partition}})
	}
}

// drainedLocked resumes the fetches when there is room. a.mu is held.
func (a *assignment) drainedLocked() {
	if a.stored > a.m.limits.records/2 || a.bytes > a.m.limits.bytes/2 {
		return
	}
	a.m.room()
	if a.paused {
		a.paused = false
		a.m.client.ResumeFetchPartitions(map[string][]int32{a.topic: {a.partition}})
	}
}

func (a *assignment) run() {
	defer close(a.frozen)
	a.timer = time.AfterFunc(time.Hour, a.ring)
	defer a.timer.Stop()
	for {
		a.turns.Lock()
		if a.freezing.Load() {
			a.settleTold()
			a.settleAll()
			a.drop()
			a.dead = true
			a.ringGrants()
			a.turns.Unlock()
			return
		}
		offer, fed := a.turn()
		a.ringGrants()
		a.turns.Unlock()
		if fed {
			a.m.signal()
		}
		a.await(offer)
	}
}

// turn does what can be done at once. It returns a delivery that nobody takes, if there is a slot for it; fed tells that some
// were handed over. turns is held.
func (a *assignment) turn() (offer *hold, fed bool) {
	now := time.Now() // once: it is not free
	a.settleTold()
	a.scanIfDue(now)
	a.answer()
	if a.stopped.Load() || a.m.ctx.Err() != nil { // not only when AfterFunc comes to it: a reader may take all there is
		if !a.idle {
			a.idle = true
			a.drop()
		}
		a.beQuiet()
	}
	offer, fed, again := a.feed(now)
	a.planScan()
	a.setTimer(again)
	return offer, fed
}

// feed hands over what somebody takes at once, and returns when to ask again if there may be more then.
func (a *assignment) feed(now time.Time) (offer *hold, fed bool, again time.Time) {
	for range feedBatch {
		if a.stopped.Load() || a.m.ctx.Err() != nil {
			return nil, fed, time.Time{}
		}
		again = a.choose()
		if a.next != nil && !a.slot {
			a.slot = a.m.budget.acquire(&a.share)
		}
		switch {
		case a.again != nil:
			offer = a.again
		case a.next != nil && a.slot:
			offer = a.next
		default:
			return nil, fed, again
		}
		if !a.m.offer(offer) {
			return offer, fed, again
		}
		a.handedOver(offer, now)
		fed = true
	}
	a.ring()
	return nil, fed, again
}

// await waits until there is something to do.
func (a *assignment) await(offer *hold) {
	if a.m.pulled { // others have turns as well
		<-a.kick
		return
	}
	var (
		out         chan<- *message.Message
		msg         *message.Message
		ack, nacked <-chan struct{}
	)
	if offer != nil {
		out, msg = a.m.out, &offer.msg
	}
	if oldest := a.held.first; oldest != nil && !a.hooked.Load() {
		ack, nacked = oldest.msg.Acked(), oldest.msg.Nacked()
	}
	select {
	case out <- msg:
		a.handedOver(offer, time.Now())
	case <-ack:
		a.settleFront()
	case <-nacked:
		a.settleFront()
	case <-a.kick:
	}
}

// advance makes a turn in the goroutine of whoever has settled a delivery, and then those of others who got its slot.
func (a *assignment) advance() {
	var room [8]*share
	todo := room[:0]
	for limit := cap(room); ; limit-- {
		if limit == 0 || !a.turns.TryLock() {
			a.ring()
		} else {
			if !a.dead {
				a.turn()
			}
			todo = append(todo, a.grants...)
			a.grants = a.grants[:0]
			a.turns.Unlock()
		}
		if len(todo) == 0 {
			return
		}
		if limit == 0 {
			for _, s := range todo {
				s.ring()
			}
			return
		}
		a, todo = todo[0].owner, todo[1:]
	}
}

// ringGrants wakes the others who got a slot. turns is held.
func (a *assignment) ringGrants() {
	for _, s := range a.grants {
		s.ring()
	}
	a.grants = a.grants[:0]
}

// beQuiet tells that nothing is held any more after a stop.
func (a *assignment) beQuiet() {
	if a.held.n > 0 {
		return
	}
	select {
	case <-a.quiet:
	default:
		close(a.quiet)
	}
}

// tell says that h may be settled, and reports whether it is the first for the next turn.
func (a *assignment) tell(h *hold) (first bool) {
	a.telling.Lock()
	defer a.telling.Unlock()
	a.told = append(a.told, h)
	return len(a.told) == 1
}

// settleTold settles what was told of.
func (a *assignment) settleTold() {
	a.telling.Lock()
	told := a.told
	a.told = a.spare
	a.telling.Unlock()
	decided := told[:0]
	for _, h := range told {
		if h.listed && h.verdict() != undecided {
			a.held.remove(h)
			decided = append(decided, h)
		}
	}
	a.settle(decided)
	clear(told)
	a.spare = told[:0]
}

// planScan sets the time of the next scan. A full window does not wait for long: every slot that is not seen to be free is a
// handler that does not run. What a scan costs grows with what is held.
func (a *assignment) planScan() {
	if a.held.n == 0 && len(a.old) == 0 {
		return
	}
	wait := a.scan
	switch hooked := len(a.old) == 0 && a.hooked.Load(); {
	case a.next != nil && !a.slot && !hooked:
		wait = min(wait, scanFast+time.Duration(a.held.n)*scanEach)
	case !a.scanAt.IsZero():
		return
	case hooked:
		wait = youth
	}
	if at := time.Now().Add(wait); a.scanAt.IsZero() || at.Before(a.scanAt) {
		a.scanAt = at
	}
}

// setTimer makes the timer ring at the next scan or at again, or before.
func (a *assignment) setTimer(again time.Time) {
	at := a.scanAt
	if at.IsZero() || !again.IsZero() && again.Before(at) {
		at = again
	}
	if at.IsZero() || !a.rings.IsZero() && !at.Before(a.rings) {
		return
	}
	a.rings = at
	a.timer.Reset(time.Until(at))
}

// scanIfDue looks at everything when its time has come.
func (a *assignment) scanIfDue(now time.Time) {
	if a.rings.IsZero() || now.Before(a.rings) {
		return
	}
	a.rings = time.Time{}
	if !a.scanAt.IsZero() && !now.Before(a.scanAt) {
		a.scanAt = time.Time{}
		a.scanAll(now)
	}
}

// choose decides what is handed over next. If there may be more later it returns when to ask again.
func (a *assignment) choose() (again time.Time) {
	if a.again == nil {
		a.again, again = a.dueAgain()
	}
	if a.next != nil {
		return again
	}
	e, ok := a.lanes.next()
	if !ok {
		if a.admit(); a.lanes.ready.len() == 0 {
			return again
		}
		e, _ = a.lanes.next()
	}
	a.next = a.newHold(e.record, e.lane)
	return again
}

// dueAgain returns the first delivery that was given back and may come again. Of one key they go in order.
func (a *assignment) dueAgain() (h *hold, again time.Time) {
	if len(a.back) == 0 {
		return nil, time.Time{}
	}
	now := time.Now()
	if now.Before(a.backAt) {
		return nil, a.backAt
	}
	seen := make(map[uint64]struct{}, len(a.back))
	for i, h := range a.back {
		if _, behind := seen[h.key]; behind && h.key != keyless {
			continue
		}
		seen[h.key] = struct{}{}
		if now.Before(h.due) {
			if again.IsZero() || h.due.Before(again) {
				again = h.due
			}
			continue
		}
		a.back = slices.Delete(a.back, i, i+1)
		return h.again(), time.Time{}
	}
	a.backAt = again
	return nil, again
}

// admit moves records from the buffer to the lanes until some may go. What was complete in an earlier life of the
// partition is done at once.
func (a *assignment) admit() {
	a.mu.Lock()
	defer a.mu.Unlock()
	moved := false
	// A few at a time, for one turn with the lock.
	some := max(1, min(feedBatch, a.m.limits.window/16))
	for a.lanes.ready.len() < some && a.buffer.len() > 0 {
		r := a.buffer.front()
		if a.tracker == nil {
			// Not the committed offset: nobody knows its epoch, and nothing lies between.
			a.tracker = ordering.NewTracker(ordering.Position{Offset: r.Offset, Epoch: r.LeaderEpoch}, a.m.limits.span)
		}
		if !a.inSpan(r.Offset) {
			a.m.commitSoon()
			break
		}
		if err := a.tracker.Dispatch(ordering.Position{Offset: r.Offset, Epoch: r.LeaderEpoch}); err != nil {
			break // it is full: the span is, and was not seen to be since offsets are missing
		}
		a.buffer.pop()
		a.bytes -= size(r)
		moved = true
		if a.skip.has(r.Offset, r.LeaderEpoch) {
			a.tracker.Done(r.Offset)
			a.stored--
			continue
		}
		before := a.lanes.waiting
		a.lanes.add(r, a.m.laneOf(r))
		if a.lanes.waiting == before {
			a.stored--
		}
	}
	if moved {
		a.drainedLocked()
	}
}

// inSpan reports whether the record at offset may be handed over without making the span too long. a.mu is held.
func (a *assignment) inSpan(offset int64) bool {
	limit := int64(a.m.limits.span)
	if a.tight {
		limit /= 4
	}
	committed := a.tracker.Committed()
	// Where offsets are missing, the next one can be beyond any span.
	return offset-committed < limit || a.tracker.Incomplete() == 0 && a.tracker.Next().Offset == committed
}

func (a *assignment) handedOver(h *hold, now time.Time) {
	if h == a.again {
		a.again = nil
		a.lanes.goesAgain(h.lane)
		a.moved()
	} else {
		a.next, a.slot = nil, false
		h.since = now
	}
	a.held.add(h)
}

// moved brings stored up to date after lanes have moved.
func (a *assignment) moved() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := a.buffer.len() + a.lanes.waiting; n != a.stored {
		a.stored = n
		a.drainedLocked()
	}
}

// settleFront settles the oldest deliveries as far as they can be.
func (a *assignment) settleFront() {
	var decided []*hold
	for h := a.held.first; h != nil && h.verdict() != undecided; h = a.held.first {
		a.held.remove(h)
		decided = append(decided, h)
	}
	a.settle(decided)
}

// settleAll settles whatever can be, and reports whether that was anything.
func (a *assignment) settleAll() bool {
	var decided []*hold
	for h := a.held.first; h != nil; {
		next := h.next
		if h.verdict() != undecided {
			a.held.remove(h)
			decided = append(decided, h)
		}
		h = next
	}
	a.settle(decided)
	return len(decided) > 0
}

// scanAll is the look at everything that was not looked at all the time.
func (a *assignment) scanAll(now time.Time) {
	found := a.settleAll()
	for h := a.held.first; h != nil && now.Sub(h.since) > youth; h = h.next {
		h.detach()
	}
	n := len(a.old)
	a.old = slices.DeleteFunc(a.old, func(h *hold) bool {
		if !h.ended() {
			return false
		}
		a.lanes.oldEnded(h.key)
		return true
	})
	if len(a.old) < n {
		a.moved()
		found = true
	}
	if found {
		a.scan = scanFast
	} else {
		a.scan = min(2*a.scan, scanSlow)
	}
}

// settle takes decided deliveries, which are in held no more.
func (a *assignment) settle(decided []*hold) {
	if len(decided) == 0 {
		return
	}
	slots := 0
	a.mu.Lock()
	for _, h := range decided {
		h.context.end()
		if h.verdict() == acked {
			a.tracker.Done(h.delivery.Offset)
			a.lanes.acked(h.lane)
			slots++
			continue
		}
		h.detach()
		h.returns++
		h.due = time.Now().Add(a.m.config.nackDelay(h.returns))
		i, _ := slices.BinarySearchFunc(a.back, h, func(b, h *hold) int { return cmp.Compare(b.delivery.Offset, h.delivery.Offset) })
		a.back = slices.Insert(a.back, i, h)
		if len(a.back) == 1 || h.due.Before(a.backAt) {
			a.backAt = h.due
		}
		a.lanes.gaveBack(h.lane)
	}
	if n := a.buffer.len() + a.lanes.waiting; n != a.stored {
		a.stored = n
		a.drainedLocked()
	}
	a.mu.Unlock()
	a.grants = a.m.budget.releaseTo(&a.share, slots, a.grants)
}

// drop forgets whatever was not handed over, or was given back. The next owner gets it.
func (a *assignment) drop() {
	slots := len(a.back)
	for _, h := range a.m.unqueue(a) {
		h.context.end()
		a.held.remove(h)
		slots++
	}
	if a.next != nil {
		a.next.context.end()
		if a.slot {
			slots++
		}
	}
	if a.again != nil {
		a.again.context.end()
		slots++
	}
	a.next, a.slot, a.again, a.back = nil, false, nil, nil
	a.lanes = newLanes(a.m.limits.key)
	for h := a.held.first; h != nil; h = h.next {
		h.lane = a.lanes.lane(h.key)
		h.lane.held++
	}
	for _, h := range a.old {
		a.lanes.addOld(h.key)
	}
	a.mu.Lock()
	a.buffer = fifo[*kgo.Record]{}
	a.bytes, a.stored = 0, 0
	a.mu.Unlock()
	a.m.budget.withdraw(&a.share)
	a.grants = a.m.budget.releaseTo(&a.share, slots, a.grants)
}

// stop lets nothing more be handed over.
func (a *assignment) stop() {
	a.stopped.Store(true)
	a.ring()
}

// freeze ends the assignment for cause, and returns the deliveries whose handlers may still run. Call it once. Afterwards the
// tracker tells what is complete.
func (a *assignment) freeze(cause error) (running []*hold) {
	a.freezing.Store(true)
	a.ring()
	<-a.frozen
	a.m.budget.leave(&a.share)
	a.detach()
	a.cancel(cause)
	return append(a.old, a.held.all()...)
}

// beginCommit returns what to commit, if there is news. Every true is followed by endCommit.
func (a *assignment) beginCommit(limit int) (p ordering.Position, metadata string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tracker == nil {
		return p, "", false
	}
	p = a.tracker.Next()
	fits := true
	if limit > 0 && a.tracker.Incomplete() > 0 {
		beyond := a.tracker.AppendBeyond(nil, a.m.limits.span)
		metadata, fits = runsOf(beyond).encode(p.Offset, limit)
	}
	a.tight = !fits
	if _, advanced := a.tracker.BeginCommit(); !advanced {
		if metadata == a.sent {
			return p, "", false
		}
	}
	a.sent = metadata
	return p, metadata, true
}

// endCommit tells what became of the commit.
func (a *assignment) endCommit(p ordering.Position, stored bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tracker.Committed() < p.Offset {
		a.tracker.EndCommit(stored)
	}
	if !stored {
		a.sent = "?" // no metadata of ours: the next commit is news
		return
	}
	a.position = p.Offset
	a.ring() // the span may have room now
}
