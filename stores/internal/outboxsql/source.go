// Package outboxsql is the outbox on any SQL database that stores/* supports: the statements, and the
// source of a relay that runs them. It knows no driver; a store lends it a [DB].
//
// On Postgres every change is one statement: a process that is frozen between two statements holds no
// lock that another relay waits for. SQLite and MySQL need short transactions to move rows to and from
// the dead rows and to promote; MySQL takes no lock in them that leases need.
package outboxsql

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/schema"
)

// DB runs statements, each by itself unless it is a transaction.
type DB interface {
	// Exec returns the number of rows that the statement changed.
	Exec(ctx context.Context, query string, args ...any) (int64, error)
	// Query calls row for each row of the answer until it returns false.
	Query(ctx context.Context, row func(scan func(...any) error) (bool, error), query string, args ...any) error
}

// Source is an outbox.Source, an outbox.Delayer and an outbox.Graveyard. It is safe for concurrent use.
type Source struct {
	d  dialect
	db DB
	// tx runs f in a transaction that reads what is committed. Postgres needs none.
	tx func(ctx context.Context, f func(DB) error) error

	outbox, delayed, dead, relay, lease string // the tables

	low              lowWater // Postgres
	beyond, counting string   // the queries of topicsBeyond and count
}

var (
	_ outbox.Delayer   = (*Source)(nil)
	_ outbox.Graveyard = (*Source)(nil)
)

// New returns a source. On Postgres tx is not used and may be nil.
func New(n schema.Names, db DB, tx func(ctx context.Context, f func(DB) error) error) *Source {
	s := &Source{
		d: dialect(n.Dialect), db: db, tx: tx,
		outbox: n.Table("outbox"), delayed: n.Table("outbox_delayed"), dead: n.Table("outbox_dead"),
		relay: n.Table("outbox_relay"), lease: n.Table("outbox_lease"),
	}
	s.beyond, s.counting = s.beyondQuery(), s.countingQuery()
	return s
}

func (s *Source) exec(ctx context.Context, db DB, query string, args ...any) (int64, error) {
	return db.Exec(ctx, s.d.text(query), args...)
}

func (s *Source) query(ctx context.Context, row func(scan func(...any) error) (bool, error), query string, args ...any) error {
	return s.db.Query(ctx, row, s.d.text(query), args...)
}

// number runs a query of one number.
func (s *Source) number(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = s.query(ctx, func(scan func(...any) error) (bool, error) { return false, scan(&n) }, query, args...)
	return n, err
}

// Topics implements outbox.Source. It jumps from one topic to the next in the index.
func (s *Source) Topics(ctx context.Context, after string, limit int) ([]outbox.Topic, error) {
	if s.d == postgres {
		list, err := s.topicsBeyond(ctx, after, limit)
		s.low.failed(err)
		if err != nil {
			return nil, fmt.Errorf("read topics from %s: %w", s.outbox, err)
		}
		return list, nil
	}
	var list []outbox.Topic
	err := s.query(ctx, func(scan func(...any) error) (bool, error) {
		var name []byte
		var age int64
		if err := scan(&name, &age); err != nil {
			return false, err
		}
		list = append(list, outbox.Topic{Name: string(name), Age: max(0, time.Duration(age)*time.Microsecond)})
		return true, nil
	}, "WITH RECURSIVE t (topic, n) AS ("+
		"SELECT min(topic), 1 FROM "+s.outbox+" WHERE topic > ?"+
		" UNION ALL"+
		" SELECT (SELECT min(o.topic) FROM "+s.outbox+" o WHERE o.topic > t.topic), t.n + 1 FROM t WHERE t.topic IS NOT NULL AND t.n < ?"+
		") SELECT topic, "+s.d.micros(s.d.now())+" - (SELECT "+s.d.micros("o.created_at")+" FROM "+s.outbox+" o WHERE o.topic = t.topic ORDER BY o.id LIMIT 1)"+
		" FROM t WHERE topic IS NOT NULL", after, limit)
	if err != nil {
		return nil, fmt.Errorf("read topics from %s: %w", s.outbox, err)
	}
	return list, nil
}

// Backlog implements outbox.Source.
func (s *Source) Backlog(ctx context.Context, limit int) (outbox.Backlog, error) {
	var b outbox.Backlog
	if s.d == postgres {
		if err := s.lookBelow(ctx); err != nil {
			return b, err
		}
	}
	for _, c := range []struct {
		table string
		n     *int
	}{{s.outbox, &b.Rows}, {s.delayed, &b.Delayed}, {s.dead, &b.Dead}} {
		var n int64
		var err error
		if c.table == s.outbox && s.d == postgres {
			n, err = s.count(ctx, limit)
		} else {
			n, err = s.number(ctx, "SELECT count(*) FROM (SELECT 1 AS one FROM "+c.table+" LIMIT ?) c", limit)
		}
		if err != nil {
			return outbox.Backlog{}, fmt.Errorf("count rows of %s: %w", c.table, err)
		}
		*c.n = int(n)
	}
	return b, nil
}

// Delete implements outbox.Source.
func (s *Source) Delete(ctx context.Context, owner, topic string, leases []outbox.Lease, ids []int64) ([]outbox.Lease, error) {
	if len(leases) == 0 || len(ids) == 0 {
		return nil, nil
	}
	var held map[outbox.Lease]bool
	var err error
	for rest := ids; len(rest) > 0 && err == nil; {
		n := len(rest)
		if s.d == postgres {
			rest, n = run(rest)
		}
		held, err = s.delete(ctx, owner, topic, leases, rest[:n])
		rest = rest[n:]
	}
	s.low.failed(err)
	s.low.deleted(topic, len(ids))
	if err != nil {
		return nil, fmt.Errorf("delete %d rows of topic %q from %s: %w", len(ids), topic, s.outbox, err)
	}
	var lost []outbox.Lease
	for _, l := range leases {
		if !held[l] {
			lost = append(lost, l)
		}
	}
	return lost, nil
}

// run sorts ids and returns how many of the first ones lie close together: the statement walks over the index
// between the first and the last.
func run(ids []int64) (sorted []int64, n int) {
	if !slices.IsSorted(ids) {
		ids = slices.Sorted(slices.Values(ids))
	}
	const gap = 10_000
	for n = 1; n < len(ids) && ids[n]-ids[n-1] < gap; n++ {
	}
	return ids, n
}

func (s *Source) delete(ctx context.Context, owner, topic string, leases []outbox.Lease, ids []int64) (map[outbox.Lease]bool, error) {
	leased, leaseArgs := s.d.leased(leases)
	args := append([]any{owner}, leaseArgs...)
	if s.d == postgres {
		// The range bounds the scan, and IS TRUE keeps the subqueries hashed filters instead of joins: no
		// plan that a stale statistic leads to reads more than the page.
		args = append(args, topic, ids[0], ids[len(ids)-1], "{"+digits(ids)+"}")
		// The leases are not locked: one that is lost meanwhile does no harm here, for its rows were confirmed, and
		// the next call tells.
		return s.readLeases(ctx, "WITH held AS (SELECT bucket, epoch FROM "+s.lease+" WHERE owner = ? AND "+leased+"),"+
			" gone AS (DELETE FROM "+s.outbox+" WHERE topic = ? AND id >= ? AND id <= ?"+
			" AND (id IN (SELECT unnest(CAST(CAST(? AS text) AS bigint[])))) IS TRUE AND (bucket IN (SELECT bucket FROM held)) IS TRUE)"+
			" SELECT bucket, epoch FROM held", args...)
	}
	// The ids are the primary key; the topic would only tempt the planner.
	if s.d == sqlite {
		query, _ := s.d.deleteFrom(s.outbox, ids, "bucket IN (SELECT bucket FROM "+s.lease+" WHERE owner = ? AND "+leased+")")
		_, err := s.exec(ctx, s.db, query, args...)
		if err != nil {
			return nil, err
		}
		return s.readLeases(ctx, "SELECT bucket, epoch FROM "+s.lease+" WHERE owner = ?", owner)
	}
	// MySQL would lock the leases in the order of the rows, and deadlock with those who prolong theirs. So
	// they are read first. One that is lost in between does no harm here: its rows were confirmed. The
	// answer still tells that it is lost, at the next call at the latest, and that is what stops the relay.
	held, err := s.readLeases(ctx, "SELECT bucket, epoch FROM "+s.lease+" WHERE owner = ? AND "+leased, args...)
	if err != nil || len(held) == 0 {
		return nil, err
	}
	buckets := make([]int64, 0, len(held))
	for l := range held {
		buckets = append(buckets, int64(l.Bucket))
	}
	inHeld, _ := s.d.in("bucket", buckets)
	query, args := s.d.deleteFrom(s.outbox, ids, inHeld)
	_, err = s.exec(ctx, s.db, query, args...)
	return held, err
}

func (s *Source) readLeases(ctx context.Context, query string, args ...any) (map[outbox.Lease]bool, error) {
	held := map[outbox.Lease]bool{}
	err := s.query(ctx, func(scan func(...any) error) (bool, error) {
		var l outbox.Lease
		err := scan(&l.Bucket, &l.Epoch)
		held[l] = true
		return true, err
	}, query, args...)
	return held, err
}
