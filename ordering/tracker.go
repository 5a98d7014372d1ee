package ordering

import (
	"errors"
	"fmt"
)

// ErrTrackerFull is returned by [Tracker.Dispatch] when the tracker holds as many offsets as it may.
var ErrTrackerFull = errors.New("tracker is full")

// minRing is the smallest ring that a tracker shrinks to.
const minRing = 256

// Position is an offset of a partition with the leader epoch that it was read under. The epoch is
// opaque here: it is handed on as it came.
type Position struct {
	Offset int64
	Epoch  int32
}

// Tracker finds the offset that one assignment of one partition may be committed up to, while its
// deliveries complete in any order.
//
// A commit is next-to-read: the last offset up to which everything is complete, plus one. It never
// passes an incomplete delivery, never exceeds the last completed offset plus one, and never goes
// back. What was read but not dispatched does not count.
//
// A Tracker is a state machine without clock or I/O; it is not safe for concurrent use. Make a new one
// for each assignment. All methods but the two that say otherwise take amortised constant time, and
// memory is bounded by the limit.
type Tracker struct {
	limit int

	// ring holds the dispatched offsets in order, from the first incomplete one on. Its length is a
	// power of two.
	ring        []tracked
	first, n    int
	done        int   // completed ones in the ring
	highest     int64 // last dispatched, or next.Offset-1
	next        Position
	committed   int64
	outstanding Position
	inCommit    bool
}

type tracked struct {
	offset int64
	epoch  int32
	done   bool
}

// NewTracker returns a tracker for a partition that is read from next on: the committed position, or
// where the reset policy put it. It holds at most limit offsets, incomplete ones and those completed
// beyond the first incomplete one together. It panics if limit is less than 1, or if
// next is not a resolved offset (Kafka's "earliest" and "latest" are negative numbers).
func NewTracker(next Position, limit int) *Tracker {
	if next.Offset < 0 {
		panic(fmt.Sprintf("ordering: NewTracker: next offset is %d: want 0 or more", next.Offset))
	}
	if limit < 1 {
		panic(fmt.Sprintf("ordering: NewTracker: limit is %d: want 1 or more", limit))
	}
	return &Tracker{limit: limit, next: next, committed: next.Offset, highest: next.Offset - 1}
}

// Dispatch records that the delivery at p is about to be handled. Offsets come in growing order; gaps
// are fine, since compaction and transaction markers leave them. It returns ErrTrackerFull when there
// is no room, and another error when p is not above all that was dispatched or is below the position
// that the tracker began with; p is then not recorded.
func (t *Tracker) Dispatch(p Position) error {
	if p.Offset <= t.highest {
		return fmt.Errorf("ordering: dispatch offset %d: offsets up to %d were dispatched or committed", p.Offset, t.highest)
	}
	if t.n == t.limit {
		return ErrTrackerFull
	}
	if t.n == len(t.ring) {
		t.resize(max(minRing, 2*t.n))
	}
	*t.at(t.n) = tracked{offset: p.Offset, epoch: p.Epoch}
	t.n++
	t.highest = p.Offset
	return nil
}

// Done records that the delivery at offset is complete: it need never be read again. It reports
// whether that is news; it is false for an offset that was done before or was not dispatched.
func (t *Tracker) Done(offset int64) bool {
	e := t.find(offset)
	if e == nil || e.done {
		return false
	}
	e.done = true
	t.done++
	for t.n > 0 {
		e := t.at(0)
		if !e.done {
			break
		}
		t.next = Position{Offset: e.offset + 1, Epoch: e.epoch}
		t.first = (t.first + 1) & (len(t.ring) - 1)
		t.n--
		t.done--
	}
	if len(t.ring) > minRing && t.n <= len(t.ring)/8 {
		t.resize(len(t.ring) / 2)
	}
	return true
}

// Next returns the position to commit: the offset to be read next, and the epoch of the one before it.
func (t *Tracker) Next() Position { return t.next }

// BeginCommit returns the position to commit if it is beyond what was committed. It returns false if
// it is not, and while another commit is under way: of two at once the older one could arrive last.
// Each true must be followed by one EndCommit.
func (t *Tracker) BeginCommit() (Position, bool) {
	if t.inCommit || t.next.Offset <= t.committed {
		return Position{}, false
	}
	t.inCommit, t.outstanding = true, t.next
	return t.next, true
}

// EndCommit ends the commit that BeginCommit began. stored tells that the broker has confirmed it; if
// not, BeginCommit offers it again. It panics without a BeginCommit.
func (t *Tracker) EndCommit(stored bool) {
	if !t.inCommit {
		panic("ordering: Tracker.EndCommit without BeginCommit")
	}
	t.inCommit = false
	if stored {
		t.committed = t.outstanding.Offset
	}
}

// Committed returns the offset that was last confirmed, or the one that the tracker began with.
func (t *Tracker) Committed() int64 { return t.committed }

// Incomplete returns how many dispatched offsets are not done.
func (t *Tracker) Incomplete() int { return t.n - t.done }

// Span returns how many offsets lie between the committed position and the highest that was
// dispatched: how much a restart reads again at most.
func (t *Tracker) Span() int64 { return t.highest + 1 - t.committed }

// AppendBeyond appends to dst the completed offsets that lie beyond the first incomplete one, lowest
// first and at most limit, each with its epoch. A restart that reads from Next may skip them. Its time
// grows with the number of offsets that the tracker holds.
func (t *Tracker) AppendBeyond(dst []Position, limit int) []Position {
	left := min(limit, t.done)
	for i := 0; left > 0; i++ {
		if e := t.at(i); e.done {
			dst = append(dst, Position{Offset: e.offset, Epoch: e.epoch})
			left--
		}
	}
	return dst
}

func (t *Tracker) at(i int) *tracked { return &t.ring[(t.first+i)&(len(t.ring)-1)] }

// find returns the entry of offset, or nil. Without gaps the entry is where its distance from the
// first one says. Gaps only bring it nearer: then a binary search finds it, in logarithmic time.
func (t *Tracker) find(offset int64) *tracked {
	if t.n == 0 || offset < t.at(0).offset || offset > t.highest {
		return nil
	}
	low, high := 0, int(min(offset-t.at(0).offset, int64(t.n-1)))
	for mid := high; low <= high; mid = (low + high) / 2 {
		switch e := t.at(mid); {
		case e.offset == offset:
			return e
		case e.offset < offset:
			low = mid + 1
		default:
			high = mid - 1
		}
	}
	return nil
}

func (t *Tracker) resize(size int) {
	ring := make([]tracked, size)
	for i := range t.n {
		ring[i] = *t.at(i)
	}
	t.ring, t.first = ring, 0
}
