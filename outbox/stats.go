package outbox

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

const (
	maxErrorType = 128
	maxErrorText = 1024

	backlogEvery = 10 * time.Second // counting costs more than looking
	backlogLimit = 100_000
)

// Stats is what a relay knows of itself and of what waits.
type Stats struct {
	// Owner names the relay. Buckets are those that it holds now; Relays are the live ones. With 0 buckets
	// and one relay nothing is published.
	Owner           string
	Buckets, Relays int

	// Lost counts the leases that ended while the relay took them for its own: they ran out, or another one
	// had them.
	Lost uint64

	// Published rows, Failures of Publish and Buried rows since the relay was made.
	Published, Failures, Buried uint64

	// Backlog was counted at most 10 s ago, each number up to 100,000.
	Backlog Backlog

	// Oldest is the age of the oldest row at the last look into the table.
	Oldest time.Duration

	// Failing are the topics that cannot be published to, wholly or for some keys, by name. At most
	// 4,096 are remembered.
	Failing []Failing

	// LastError is the last error of the publisher or the database, nil if there was none, and
	// LastErrorAt its time.
	LastError   error
	LastErrorAt time.Time
}

// Failing is a topic with rows that cannot be published now.
type Failing struct {
	Topic string
	// Down says that nothing can be published to the topic. Attempts failed one after the other, the
	// first at Since, and the next one is at Next.
	Down     bool
	Attempts int
	Since    time.Time
	Next     time.Time
	// Lanes is how many keys fail while others go on (each row without a key counts as one), and
	// LaneAttempts the most attempts of one of them.
	Lanes, LaneAttempts int
	// Err is the last error.
	Err error
}

type stats struct {
	published, failures, buried atomic.Uint64

	mu          sync.Mutex
	backlog     Backlog
	oldest      time.Duration
	failing     map[string]Failing
	lastError   error
	lastErrorAt time.Time
}

// Stats returns the present state. It does no I/O and is safe for concurrent use. The caller owns the
// result.
func (r *Relay) Stats() Stats {
	s := Stats{Published: r.stats.published.Load(), Failures: r.stats.failures.Load(), Buried: r.stats.buried.Load()}
	s.Owner = r.cfg.Owner
	s.Buckets, s.Relays = r.tenancy.counts(time.Now())
	s.Lost = r.tenancy.lostOnes()
	r.stats.mu.Lock()
	defer r.stats.mu.Unlock()
	s.Backlog, s.Oldest = r.stats.backlog, r.stats.oldest
	s.LastError, s.LastErrorAt = r.stats.lastError, r.stats.lastErrorAt
	s.Failing = slices.SortedFunc(maps.Values(r.stats.failing), func(a, b Failing) int { return strings.Compare(a.Topic, b.Topic) })
	return s
}

func (r *Relay) record(err error) {
	r.stats.mu.Lock()
	defer r.stats.mu.Unlock()
	r.stats.lastError, r.stats.lastErrorAt = err, time.Now()
}

// failure records an error of the publisher.
func (r *Relay) failure(err error) {
	r.stats.failures.Add(1)
	r.record(err)
}

// databaseError records and logs an error of the source. It is called where the call is repeated.
func (r *Relay) databaseError(ctx context.Context, err error) {
	r.record(err)
	r.cfg.Logger.WarnContext(ctx, "outbox: database error; the call is repeated", "error", err)
}

// note publishes how the topic fares.
func (d *drain) note() {
	t := d.t
	fails := t.out != nil || len(t.held) > 0
	if !fails && !t.noted {
		return
	}
	t.noted = fails
	f := Failing{Topic: t.name, Lanes: len(t.held)}
	for _, l := range t.held {
		f.LaneAttempts = max(f.LaneAttempts, l.attempts)
		f.Err = l.err
	}
	if t.out != nil {
		f.Down, f.Attempts, f.Since, f.Next, f.Err = true, t.out.attempts, t.out.since, t.out.next, t.out.err
	}
	d.stats.mu.Lock()
	defer d.stats.mu.Unlock()
	if !fails {
		delete(d.stats.failing, t.name)
		return
	}
	d.stats.failing[t.name] = f
}

// bounded cuts text at a rune so that it has at most limit bytes, and makes it storable.
func bounded(text string, limit int) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}
