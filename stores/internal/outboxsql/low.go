package outboxsql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/headrace-go/headrace/outbox"
)

const (
	stepEvery  = 2_000 // rows deleted between two tries to raise a mark
	maxStuck   = 200   // rows that a mark may pass
	maxWriters = 1_000 // more at once, and a mark waits
	maxMarks   = 4_096 // topics

	rescanEvery = 10 * time.Second // at least, and 50 times as long as it took
)

// lowWater knows for each topic below which id there is nothing to read. It is for Postgres: its index
// keeps the entries of deleted rows for as long as the oldest snapshot of anybody in the database, and a read
// from the first row would walk over all of them. MySQL keeps them for its oldest read view as well, and has no
// marks: nothing that any user may read there tells which transactions may still commit an id. See the limits in stores/sqlstore.
//
// A mark is safe: no row with an id up to it exists, stuck ones apart, or can appear. It is raised in two
// steps. First, all ids up to the highest that was read are given out; who may still commit one of them holds,
// since before it was given out, a lock on the table that lasts as long as its transaction: those are noted.
// Later, when all of them have ended, what is left up to that id is read once, and is stuck; the mark is put
// there. A foreign transaction that has not written to the outbox stops nothing.
//
// Ids that go back (a failover to a standby that had not seen all, a restore, a sequence that was set) break
// that. So marks are dropped when the server was started anew and after errors, and below them is looked now
// and then.
type lowWater struct {
	mu      sync.Mutex
	topics  map[string]*mark
	server  int64 // when it was started
	rescan  time.Time
	dropped int // counts drops: what was learned before one is not used after it
}

// mark is what is known of one topic.
type mark struct {
	low   int64
	stuck []int64 // rows with ids up to low that exist or may come back, in order

	seen    int64 // the highest id that was read
	deleted int   // rows, since the last step
	busy    bool  // somebody takes a step

	candidate int64    // is the mark once
	writers   []string // these transactions have ended
}

// at returns the mark of a topic: its lowest id to read, and the rows below that.
func (l *lowWater) at(topic string) (from int64, stuck []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.topics[topic]; m != nil {
		return m.low + 1, m.stuck
	}
	return 0, nil
}

// read notes that rows up to id were read, so that all ids up to it are given out.
func (l *lowWater) read(topic string, id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.topics[topic]
	if m == nil {
		if len(l.topics) >= maxMarks {
			return
		}
		if l.topics == nil {
			l.topics = map[string]*mark{}
		}
		m = &mark{}
		l.topics[topic] = m
	}
	m.seen = max(m.seen, id)
}

func (l *lowWater) deleted(topic string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.topics[topic]; m != nil {
		m.deleted += n
	}
}

func (l *lowWater) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.topics = nil
	l.dropped++
}

// failed drops the marks after an error that is not just our own deadline.
func (l *lowWater) failed(err error) {
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		l.drop()
	}
}

// startedAt drops the marks when the server is another one than before.
func (l *lowWater) startedAt(server int64) (same bool) {
	l.mu.Lock()
	same = l.server == server || l.server == 0
	l.server = server
	l.mu.Unlock()
	if !same {
		l.drop()
	}
	return same
}

// known returns the marks in the order of the topics' names.
func (l *lowWater) known() (topics []string, from []int64, stuck [][]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for t := range l.topics {
		topics = append(topics, t)
	}
	slices.Sort(topics)
	for _, t := range topics {
		from = append(from, l.topics[t].low+1)
		stuck = append(stuck, l.topics[t].stuck)
	}
	return topics, from, stuck
}

// begin says whether a step is due, and then what there is to go by.
func (l *lowWater) begin(topic string) (before mark, due bool, generation int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.topics[topic]
	if m == nil || m.busy || m.deleted < stepEvery {
		return mark{}, false, 0
	}
	m.busy, m.deleted = true, 0
	return *m, true, l.dropped
}

// end records what a step has found.
func (l *lowWater) end(topic string, after mark, generation int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.topics[topic]
	if m == nil || generation != l.dropped {
		return
	}
	m.busy = false
	m.low, m.stuck, m.candidate, m.writers = after.low, after.stuck, after.candidate, after.writers
}

// raise takes a step if one is due.
func (s *Source) raise(ctx context.Context, topic string) error {
	m, due, generation := s.low.begin(topic)
	if !due {
		return nil
	}
	defer func() { s.low.end(topic, m, generation) }()
	writers, prepared, err := s.writers(ctx)
	if err != nil {
		return err
	}
	if prepared || len(writers) > maxWriters {
		return nil
	}
	still := func(w string) bool { return slices.Contains(writers, w) }
	if m.candidate > m.low && !slices.ContainsFunc(m.writers, still) {
		if err := s.sweep(ctx, topic, &m); err != nil {
			return err
		}
		m.candidate = 0
	}
	if m.candidate == 0 {
		m.candidate, m.writers = m.seen, writers
	}
	return nil
}

// writers returns the transactions that may have ids which they have not committed: an INSERT locks its table
// before it takes an id, until its transaction ends. A prepared transaction changes its name while it
// keeps its locks: prepared tells that there is one.
func (s *Source) writers(ctx context.Context) (list []string, prepared bool, err error) {
	err = s.query(ctx, func(scan func(...any) error) (bool, error) {
		var w string
		var p bool
		err := scan(&w, &p)
		list, prepared = append(list, w), prepared || p
		return true, err
	}, "SELECT DISTINCT virtualtransaction, pid IS NULL FROM pg_catalog.pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted"+
		" AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"+
		" AND relation = CAST(CAST(? AS text) AS regclass) LIMIT ?", s.outbox, maxWriters+1)
	if err != nil {
		return nil, false, fmt.Errorf("read who writes to %s: %w", s.outbox, err)
	}
	return list, prepared, nil
}

// sweep puts the mark at its candidate, or as far as there are not too many rows in the way. A dead row that
// blocks its key comes back with its old id when it is revived.
func (s *Source) sweep(ctx context.Context, topic string, m *mark) error {
	var left []int64
	err := s.query(ctx, func(scan func(...any) error) (bool, error) {
		var id int64
		err := scan(&id)
		left = append(left, id)
		return true, err
	}, "SELECT id FROM ("+
		"(SELECT o.id FROM unnest("+bigints+") x (id) CROSS JOIN LATERAL (SELECT id FROM "+s.outbox+" WHERE topic = ? AND id = x.id LIMIT 1) o)"+
		" UNION ALL (SELECT id FROM "+s.outbox+" WHERE topic = ? AND id >= ? AND id <= ? ORDER BY topic, id LIMIT ?)"+
		" UNION ALL (SELECT id FROM "+s.dead+" WHERE topic = ? AND blocks ORDER BY id LIMIT ?)) x ORDER BY id",
		"{"+digits(m.stuck)+"}", topic, topic, m.low+1, m.candidate, maxStuck+1, topic, maxStuck+1)
	if err != nil {
		return fmt.Errorf("read what is left of topic %q in %s: %w", topic, s.outbox, err)
	}
	low := m.candidate
	if len(left) > maxStuck && left[maxStuck] <= low {
		low = left[maxStuck] - 1
	}
	if low < m.low {
		return nil // rows came back below; they are read all the same
	}
	m.low = low
	n, _ := slices.BinarySearch(left, low+1)
	m.stuck = left[:n]
	return nil
}

// topicsBeyond is Topics for the rows beyond the marks, and for all rows of topics without one.
func (s *Source) topicsBeyond(ctx context.Context, after string, limit int) ([]outbox.Topic, error) {
	for {
		topics, from, stuck := s.low.known()
		begin, found := slices.BinarySearch(topics, after)
		if found {
			begin++
		}
		topics, from, stuck = topics[begin:], from[begin:], stuck[begin:]
		lowers := append([]string{after}, topics...)
		stuckTopics, stuckIDs := flat(topics, stuck)
		list, same, err := s.listTopics(ctx, limit, []any{
			textArray(lowers), textArray(topics), limit, limit, textArray(topics), "{" + digits(from) + "}", textArray(stuckTopics), "{" + digits(stuckIDs) + "}", limit,
		})
		if err != nil || same {
			return list, err
		}
	}
}

// flat lists each stuck row with its topic.
func flat(topics []string, stuck [][]int64) (of []string, ids []int64) {
	for i, list := range stuck {
		for _, id := range list {
			of, ids = append(of, topics[i]), append(ids, id)
		}
	}
	return of, ids
}

func (s *Source) listTopics(ctx context.Context, limit int, args []any) (list []outbox.Topic, same bool, err error) {
	same = true
	err = s.query(ctx, func(scan func(...any) error) (bool, error) {
		var name string
		var age, server int64
		if err := scan(&name, &age, &server); err != nil {
			return false, err
		}
		if !s.low.startedAt(server) {
			same = false
		}
		if len(list) < limit && name != "" {
			list = append(list, outbox.Topic{Name: name, Age: max(0, time.Duration(age)*time.Microsecond)})
		}
		return true, nil
	}, s.beyond, args...)
	return list, same, err
}

// texts and bigints are arguments of [textArray] and of digits in braces.
const texts, bigints = "CAST(CAST(? AS text) AS text[])", "CAST(CAST(? AS text) AS bigint[])"

// beyondQuery looks for topics in the gaps between the known ones (lower and upper bounds; the last gap has no
// upper one), for rows of the known ones beyond their marks, and for rows that a mark has passed. The empty
// topic is a line for the time of the server's start.
func (s *Source) beyondQuery() string {
	next := func(lower, upper string) string {
		return "CASE WHEN " + upper + " IS NULL THEN (SELECT min(o.topic) FROM " + s.outbox + " o WHERE o.topic > " + lower + ")" +
			" ELSE (SELECT min(o.topic) FROM " + s.outbox + " o WHERE o.topic > " + lower + " AND o.topic < " + upper + ") END"
	}
	first := "(SELECT o.created_at FROM " + s.outbox + " o WHERE (o.topic, o.id) >= (m.topic, m.id) AND (o.topic, o.id) <= (m.topic, 9223372036854775807) ORDER BY o.topic, o.id LIMIT 1)"
	return "WITH RECURSIVE t (topic, upper, n) AS (" +
		"SELECT " + next(`g.lower COLLATE "C"`, `g.upper COLLATE "C"`) + `, g.upper COLLATE "C", 1 FROM unnest(` + texts + ", " + texts + ") g (lower, upper)" +
		" UNION ALL SELECT " + next("t.topic", "t.upper") + ", t.upper, t.n + 1 FROM t WHERE t.topic IS NOT NULL AND t.n < ?" +
		"), found (topic, created_at) AS (" +
		"(SELECT m.topic, f.created_at FROM (SELECT topic, CAST(0 AS bigint) AS id FROM t WHERE topic IS NOT NULL ORDER BY topic LIMIT ?) m CROSS JOIN LATERAL " + first + " f)" +
		` UNION ALL (SELECT m.topic, f.created_at FROM unnest(` + texts + ", " + bigints + ") m (topic, id) CROSS JOIN LATERAL " + first + " f)" +
		" UNION ALL (SELECT m.topic, f.created_at FROM unnest(" + texts + ", " + bigints + ") m (topic, id) CROSS JOIN LATERAL" +
		" (SELECT o.created_at FROM " + s.outbox + " o WHERE o.topic = m.topic AND o.id = m.id LIMIT 1) f)" +
		") SELECT topic, age, server FROM (SELECT topic, " + s.d.micros(s.d.now()) + " - " + s.d.micros("min(created_at)") + " AS age, " +
		s.d.micros("pg_postmaster_start_time()") + ` AS server FROM found GROUP BY topic` +
		" UNION ALL SELECT '', 0, " + s.d.micros("pg_postmaster_start_time()") + `) r ORDER BY topic COLLATE "C" LIMIT ? + 1`
}

// count counts the rows that exist: beyond the marks, of topics without one, and those that a mark has passed. Behind an
// old snapshot it does not walk over what was published.
func (s *Source) count(ctx context.Context, limit int) (int64, error) {
	topics, from, stuck := s.low.known()
	stuckTopics, stuckIDs := flat(topics, stuck)
	lowers := append([]string{""}, topics...) // of the gaps; the last one has no upper bound
	known := textArray(topics)
	return s.number(ctx, s.counting,
		known, "{"+digits(from)+"}", limit, limit, // beyond the marks
		textArray(lowers[:len(topics)]), known, limit, limit, // in the gaps
		lowers[len(topics)], limit, // beyond the last topic
		textArray(stuckTopics), "{"+digits(stuckIDs)+"}", limit, limit, limit)
}

// countingQuery is that of count. The orders make it walk the primary key, whatever the statistics say.
func (s *Source) countingQuery() string {
	some := func(cond string) string {
		return "SELECT 1 AS one FROM " + s.outbox + " o WHERE " + cond + " ORDER BY o.topic, o.id LIMIT ?"
	}
	each := func(list, cond string) string { // the statement's first limit is that for one of the list
		return "(SELECT f.one FROM " + list + " CROSS JOIN LATERAL (" + some(cond) + ") f LIMIT ?)"
	}
	return "SELECT count(*) FROM (" +
		each("unnest("+texts+", "+bigints+") m (topic, id)", "(o.topic, o.id) >= (m.topic, m.id) AND (o.topic, o.id) <= (m.topic, 9223372036854775807)") +
		" UNION ALL " + each("unnest("+texts+", "+texts+") g (lower, upper)", `o.topic > g.lower COLLATE "C" AND o.topic < g.upper COLLATE "C"`) +
		" UNION ALL (" + some("o.topic > ?") + ")" +
		" UNION ALL " + each("unnest("+texts+", "+bigints+") m (topic, id)", "o.topic = m.topic AND o.id = m.id") +
		" LIMIT ?) c"
}

// lookBelow looks for rows below the marks that should not be there, and drops the marks if there are any.
// Behind an old snapshot that takes long; then it is done more rarely.
func (s *Source) lookBelow(ctx context.Context) error {
	s.low.mu.Lock()
	due := !time.Now().Before(s.low.rescan)
	s.low.mu.Unlock()
	topics, from, stuck := s.low.known()
	if !due || len(topics) == 0 {
		return nil
	}
	began := time.Now()
	defer func() {
		s.low.mu.Lock()
		s.low.rescan = time.Now().Add(max(rescanEvery, 50*time.Since(began)))
		s.low.mu.Unlock()
	}()
	var all []int64
	for i := range stuck {
		all = append(all, stuck[i]...)
	}
	n, err := s.number(ctx, "SELECT count(*) FROM (SELECT 1 AS one FROM unnest(CAST(CAST(? AS text) AS text[]), CAST(CAST(? AS text) AS bigint[])) m (topic, id)"+
		" CROSS JOIN LATERAL (SELECT 1 FROM "+s.outbox+" o WHERE o.topic = m.topic AND o.id >= 0 AND o.id < m.id"+
		" AND (o.id IN (SELECT unnest(CAST(CAST(? AS text) AS bigint[])))) IS NOT TRUE ORDER BY o.topic, o.id LIMIT 1) f LIMIT 1) c",
		textArray(topics), "{"+digits(from)+"}", "{"+digits(all)+"}")
	if err != nil {
		return fmt.Errorf("look for rows of %s with old ids: %w", s.outbox, err)
	}
	if n > 0 {
		s.low.drop()
	}
	return nil
}
