package outbox

import (
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Limits of what the relay remembers.
const (
	maxTopics    = 4_096  // topics, failing or not
	maxBlocked   = 10_000 // keys of one topic with a blocking dead row
	maxHeldLanes = 1_000  // failing keys of one topic; more look like an outage
	outageLanes  = 3      // keys that fail in a row, and none succeeds: an outage
)

// topic is what the relay knows of one topic. It belongs to the main loop while the topic rests and to
// the topic's drain while it runs; nobody shares it.
type topic struct {
	name string

	// low is the id up to which this pass has looked at rows. Rows at or below it can appear late, or
	// were skipped because their lane is held, so each pass begins at 0 again. mark is where the pass
	// before was, and caughtUp when this one got there, the zero time until then: no pass is broken off
	// before it has come further than the last one, however many rows are skipped.
	low, mark int64
	caughtUp  time.Time

	// covered are the leases that all pages of this pass were read under. A bucket that comes in the
	// middle of a pass has rows below low that were not looked at: then a new pass begins.
	covered grant

	// blocked are the keys that had a blocking dead row at some time in this pass. When it is revived
	// or discarded the rows that were skipped lie below low, so the key is held until the next pass.
	blocked map[string]bool

	// held are the lanes whose first row could not be published. All rows of a held lane are skipped
	// until a pass from 0 begins at or after its next time, so that none overtakes the first.
	held map[string]*failure

	// out is set while nothing at all can be published to the topic. probe counts the lanes that were
	// tried since, so that a row that is itself the trouble is not tried for ever in place of others.
	out   *failure
	probe int

	// next is when the topic is to be looked at again because of a failure; the zero time: no matter.
	next time.Time

	// For the main loop.
	running, queued, again bool
}

// failure is one run of failed publishes.
type failure struct {
	attempts int
	since    time.Time
	next     time.Time
	err      error
	backoff  *backoff.ExponentialBackOff
	// trying lets a held lane's rows through in this pass.
	trying bool
}

// again counts one more failure; after is the least time to wait.
func (f *failure) again(now time.Time, err error, after time.Duration) {
	f.attempts++
	f.err = err
	f.trying = false
	f.next = now.Add(max(after, f.backoff.NextBackOff()))
}

func newFailure(now time.Time, c *RelayConfig) *failure {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = c.BackoffMin, c.BackoffMax
	b.MaxElapsedTime = 0 // its default gives up after 15 minutes
	b.Reset()
	return &failure{since: now, backoff: b}
}

// lane names what a row is ordered by within its topic. A row without a key is alone.
func lane(row *Row) string {
	if row.Key == "" {
		return "\x00" + row.UUID // a key has no NUL byte
	}
	return row.Key
}

// begin prepares the next page, under g: it goes on behind low, or starts a new pass when one is due.
func (t *topic) begin(now time.Time, g *grant, c *RelayConfig) {
	if t.caughtUp.IsZero() && t.low >= t.mark {
		t.caughtUp = now
	}
	due := t.low == 0 || !g.within(&t.covered)
	t.covered = *g
	if !t.caughtUp.IsZero() {
		age := now.Sub(t.caughtUp)
		due = due || age >= c.Rescan
		if !due && age >= c.BackoffMin {
			for _, f := range t.held {
				due = due || !f.trying && !now.Before(f.next)
			}
		}
	}
	if !due {
		return
	}
	t.low, t.mark, t.caughtUp = 0, t.low, time.Time{}
	t.blocked = nil
	for _, f := range t.held {
		// Decided once for the whole pass: a lane that became free in the middle of one would publish
		// a later row before the first, which was skipped already.
		f.trying = !now.Before(f.next)
	}
}

// restart makes the next page begin a new pass: this one stopped before its end.
func (t *topic) restart() { t.low = 0 }

// skips reports whether the rows of a lane must wait.
func (t *topic) skips(l string) bool {
	f := t.held[l]
	return f != nil && !f.trying || t.blocked[l]
}

// block holds a key for the rest of the pass, and after that if its dead row is still there.
func (t *topic) block(key string) {
	if t.blocked == nil {
		t.blocked = map[string]bool{}
	}
	t.blocked[key] = true
}

// hold counts a failure of a lane's first row.
func (t *topic) hold(l string, now time.Time, err error, after time.Duration, c *RelayConfig) {
	f := t.held[l]
	if f == nil {
		f = newFailure(now, c)
		if t.held == nil {
			t.held = map[string]*failure{}
		}
		t.held[l] = f
	}
	f.again(now, err, after)
}

// stop records that the topic as a whole fails.
func (t *topic) stop(now time.Time, err error, after time.Duration, c *RelayConfig) {
	if t.out == nil {
		t.out = newFailure(now, c)
	}
	t.out.again(now, err, after)
	t.next = t.out.next
}

// recovered ends an outage. Lanes that failed meanwhile are tried at once: it was not their fault.
func (t *topic) recovered(now time.Time) {
	t.out, t.probe = nil, 0
	for _, f := range t.held {
		f.next = now
	}
}

// wait sets next by what has failed.
func (t *topic) wait(now time.Time) {
	t.next = time.Time{}
	if t.out != nil && now.Before(t.out.next) {
		t.next = t.out.next
		return
	}
	for _, f := range t.held {
		if !f.trying && (t.next.IsZero() || f.next.Before(t.next)) {
			t.next = f.next
		}
	}
}
