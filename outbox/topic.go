package outbox

import (
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Limits of what the relay remembers.
const (
	maxTopics    = 4_096 // topics, failing or not
	maxHeldLanes = 200   // failing keys of one topic, left out by the query; more look like an outage
	outageLanes  = 3     // keys that begin to fail, and none succeeds: an outage
	maxRefused   = 100   // rows given up in a row, and none succeeds: it is not the rows
)

// topic is what the relay knows of one topic. It belongs to the main loop while the topic rests and to
// the topic's drain while it runs; nobody shares it.
type topic struct {
	name string

	// held are the lanes whose first row could not be published, by lane. None of their rows is read
	// before its time, so that none overtakes the first.
	held map[string]*failure

	// unanswered counts the lanes that began to fail since the broker last took a row, or refused one for
	// good. At outageLanes the topic itself is out: then one row at a time is tried.
	unanswered int
	out        *failure

	// refused counts the rows given up since the broker last took one. At maxRefused a refusal counts as a
	// failure: a broker that refuses all it gets (for want of a permission, say) must not empty the outbox.
	refused int

	noted bool // the failure is in the stats

	// next is when the topic is to be looked at again because of a failure; the zero time: no matter.
	next time.Time

	// For the main loop.
	running, queued bool

	// again says that rows were found since the drain last began to read, and poke tells it at once.
	again atomic.Bool
	poke  chan struct{}
}

// failure is one run of failed publishes.
type failure struct {
	attempts int
	since    time.Time
	next     time.Time
	err      error
	backoff  *backoff.ExponentialBackOff
	// The first row of the lane.
	key string
	id  int64
}

// again counts one more failure; after is the least time to wait.
func (f *failure) again(now time.Time, err error, after time.Duration) {
	f.attempts++
	f.err = err
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

// hold counts a failure of a lane's first row.
func (t *topic) hold(row *Row, now time.Time, err error, after time.Duration, c *RelayConfig) {
	f := t.held[lane(row)]
	if f == nil {
		f = newFailure(now, c)
		if t.held == nil {
			t.held = map[string]*failure{}
		}
		t.held[lane(row)] = f
	}
	f.key, f.id = row.Key, row.ID
	f.again(now, err, after)
}

// leaveOut makes q leave out the lanes that are held at the given time.
func (t *topic) leaveOut(q *Query, at time.Time) {
	for _, f := range t.held {
		switch {
		case !f.next.After(at):
		case f.key != "":
			q.NotKeys = append(q.NotKeys, f.key)
		default:
			q.NotIDs = append(q.NotIDs, f.id)
		}
	}
}

// forget drops the lanes that were tried at the given time and have no failure since: when all rows of
// the topic were looked at, they were published or are gone.
func (t *topic) forget(at time.Time) {
	for l, f := range t.held {
		if !f.next.After(at) {
			delete(t.held, l)
		}
	}
}

// recovered ends an outage. Lanes that failed meanwhile are tried at once: it was not their fault.
func (t *topic) recovered(now time.Time) {
	t.out = nil
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
		if t.next.IsZero() || f.next.Before(t.next) {
			t.next = f.next
		}
	}
}
