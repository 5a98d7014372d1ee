// Package deadlettersql is the table of dead letters on any SQL database that stores/* supports. It knows no driver; a
// store lends it a [DB] and a way to run transactions.
//
// A change of state marks the rows that it takes with a token of its own (op), so that no RETURNING is needed and every
// database runs the same statements: mark, read what was marked, write the trail, commit.
package deadlettersql

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/stores/internal/outboxsql"
	"github.com/headrace-go/headrace/stores/internal/sqltext"
	"github.com/headrace-go/headrace/stores/schema"
)

// DB runs statements.
type DB = outboxsql.DB

// Table is a deadletter.Table. It is safe for concurrent use.
type Table struct {
	dialect        schema.Dialect
	letters, trail string
	db             DB
	tx             func(ctx context.Context, f func(DB) error) error // reads what is committed
}

var _ deadletter.Table = (*Table)(nil)

// New returns a table. tx runs f in a transaction that reads what is committed.
func New(n schema.Names, db DB, tx func(ctx context.Context, f func(DB) error) error) *Table {
	return &Table{dialect: n.Dialect, letters: n.Table("deadletter"), trail: n.Table("deadletter_trail"), db: db, tx: tx}
}

func (t *Table) text(query string) string { return sqltext.Placeholders(t.dialect, query) }

// now is the database's clock in microseconds.
func (t *Table) now() string { return sqltext.Micros(t.dialect, sqltext.Now(t.dialect)) }

func (t *Table) exec(ctx context.Context, db DB, query string, args ...any) (int64, error) {
	return db.Exec(ctx, t.text(query), args...)
}

func (t *Table) query(ctx context.Context, db DB, row func(scan func(...any) error) error, query string, args ...any) error {
	return db.Query(ctx, func(scan func(...any) error) (bool, error) { return true, row(scan) }, t.text(query), args...)
}

// tries bounds how often a transaction that lost a deadlock is run again.
const tries = 5

// transact runs f in a transaction. Two operators may lock the same letters in different orders.
func (t *Table) transact(ctx context.Context, f func(DB) error) error {
	var err error
	for range tries {
		if err = t.tx(ctx, f); err == nil || ctx.Err() != nil {
			return err
		}
		if v := (*classify.Classifier)(nil).Classify(err).Verdict; v != classify.VerdictRetry {
			return err
		}
	}
	return err
}

// in is the condition that column is one of values, of which there is at least one.
func in[T ~string](column string, values []T) (string, []any) {
	args := make([]any, len(values))
	for i, v := range values {
		args[i] = string(v)
	}
	return column + " IN (?" + strings.Repeat(", ?", len(values)-1) + ")", args
}

// where is a filter as a condition.
func where(f *deadletter.Filter) (string, []any) {
	var conds []string
	var args []any
	add := func(cond string, values ...any) {
		conds, args = append(conds, cond), append(args, values...)
	}
	if len(f.IDs) > 0 {
		cond, ids := in("id", f.IDs)
		add(cond, ids...)
	}
	if len(f.States) > 0 {
		cond, states := in("state", f.States)
		add(cond, states...)
	}
	for _, c := range []struct{ column, value string }{
		{"consumer", f.Consumer},
		{"topic", f.Topic},
		{"event_type", f.Type},
		{"error_type", f.ErrorType},
		{"fingerprint", f.Fingerprint},
		{"message_id", f.MessageID},
		{"correlation_id", f.CorrelationID},
		{"subject", f.Subject},
		{"msg_key", f.Key},
		{"batch", f.Batch},
	} {
		if c.value != "" {
			add(c.column+" = ?", c.value)
		}
	}
	if !f.Since.IsZero() {
		add("failed_at >= ?", f.Since.UnixMicro())
	}
	if !f.Until.IsZero() {
		add("failed_at < ?", f.Until.UnixMicro())
	}
	if f.MinDeaths > 0 {
		add("deaths >= ?", f.MinDeaths)
	}
	if f.Text != "" {
		add("search LIKE ? ESCAPE '!'", "%"+escapeLike(deadletter.Fold(f.Text))+"%")
	}
	if len(conds) == 0 {
		return "1 = 1", nil
	}
	return strings.Join(conds, " AND "), args
}

func escapeLike(s string) string {
	return strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(s)
}

const listed = "id, state, consumer, topic, partition_no, position_no, event_type, subject, msg_key, message_id, correlation_id," +
	" error_type, fingerprint, batch, error, deaths, hops, failed_at, redacted, sealed, edited_from"

// Select implements deadletter.Table.
func (t *Table) Select(ctx context.Context, q deadletter.Query) ([]deadletter.Row, error) {
	cond, args := where(&q.Filter)
	order, than := "failed_at, id", ">"
	if q.Newest {
		order, than = "failed_at DESC, id DESC", "<"
	}
	if q.After != nil {
		at := micros(q.After.FailedAt)
		cond += " AND (failed_at " + than + " ? OR failed_at = ? AND id " + than + " ?)"
		args = append(args, at, at, q.After.ID)
	}
	columns := listed + ", claimed_by, claimed_until, indexed_at, changed_at"
	if q.Bodies {
		columns += ", document, payload"
	}
	var rows []deadletter.Row
	err := t.query(ctx, t.db, func(scan func(...any) error) error {
		var r deadletter.Row
		var state string
		var failed, until, indexed, changed int64
		into := []any{
			&r.ID, &state, &r.Consumer, &r.Topic, &r.Partition, &r.Offset, &r.Type, &r.Subject, &r.Key, &r.MessageID, &r.CorrelationID,
			&r.ErrorType, &r.Fingerprint, &r.Batch, &r.Error, &r.Deaths, &r.Hops, &failed, &r.Redacted, &r.Sealed, &r.EditedFrom,
			&r.ClaimedBy, &until, &indexed, &changed,
		}
		if q.Bodies {
			into = append(into, &r.Document, &r.Payload)
		}
		if err := scan(into...); err != nil {
			return err
		}
		r.State, r.FailedAt, r.IndexedAt, r.ChangedAt = deadletter.State(state), timeOf(failed), timeOf(indexed), timeOf(changed)
		if until > 0 {
			r.ClaimedUntil = timeOf(until)
		}
		rows = append(rows, r)
		return nil
	}, "SELECT "+columns+" FROM "+t.letters+" WHERE "+cond+" ORDER BY "+order+" LIMIT ?", append(args, q.Limit)...)
	if err != nil {
		return nil, fmt.Errorf("select dead letters: %w", err)
	}
	return rows, nil
}

// zeroTime is how a time that is not known is stored.
const zeroTime = -1 << 62

func micros(at time.Time) int64 {
	if at.IsZero() {
		return zeroTime
	}
	return at.UnixMicro()
}

func timeOf(us int64) time.Time {
	if us == zeroTime {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// Count implements deadletter.Table.
func (t *Table) Count(ctx context.Context, f deadletter.Filter) (map[deadletter.State]int64, error) {
	cond, args := where(&f)
	counts := map[deadletter.State]int64{}
	err := t.query(ctx, t.db, func(scan func(...any) error) error {
		var state string
		var n int64
		if err := scan(&state, &n); err != nil {
			return err
		}
		counts[deadletter.State(state)] = n
		return nil
	}, "SELECT state, count(*) FROM "+t.letters+" WHERE "+cond+" GROUP BY state", args...)
	if err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	return counts, nil
}

// Groups implements deadletter.Table.
func (t *Table) Groups(ctx context.Context, f deadletter.Filter, limit int) ([]deadletter.Group, error) {
	cond, args := where(&f)
	const by = "consumer, topic, event_type, error_type, fingerprint"
	var groups []deadletter.Group
	err := t.query(ctx, t.db, func(scan func(...any) error) error {
		var g deadletter.Group
		var first, last int64
		if err := scan(&g.Consumer, &g.Topic, &g.Type, &g.ErrorType, &g.Fingerprint, &g.Count, &g.New, &first, &last); err != nil {
			return err
		}
		g.First, g.Last = timeOf(first), timeOf(last)
		groups = append(groups, g)
		return nil
	}, "SELECT "+by+", count(*), sum(CASE WHEN state = 'new' THEN 1 ELSE 0 END), min(failed_at), max(failed_at) FROM "+t.letters+
		" WHERE "+cond+" GROUP BY "+by+" ORDER BY count(*) DESC, max(failed_at) DESC, fingerprint, consumer, topic, event_type LIMIT ?", append(args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("group dead letters: %w", err)
	}
	for i := range groups {
		g := &groups[i]
		err := t.query(ctx, t.db, func(scan func(...any) error) error { return scan(&g.Sample, &g.Error) },
			"SELECT id, error FROM "+t.letters+" WHERE "+cond+" AND consumer = ? AND topic = ? AND event_type = ? AND error_type = ? AND fingerprint = ?"+
				" ORDER BY failed_at DESC, id DESC LIMIT 1", append(append([]any(nil), args...), g.Consumer, g.Topic, g.Type, g.ErrorType, g.Fingerprint)...)
		if err != nil {
			return nil, fmt.Errorf("group dead letters: sample: %w", err)
		}
	}
	return groups, nil
}

// Trail implements deadletter.Table.
func (t *Table) Trail(ctx context.Context, id string, limit int) ([]deadletter.Entry, error) {
	var entries []deadletter.Entry
	err := t.query(ctx, t.db, func(scan func(...any) error) error {
		e := deadletter.Entry{LetterID: id}
		var at int64
		if err := scan(&at, &e.Actor, &e.Action, &e.Reason, &e.Batch, &e.Detail); err != nil {
			return err
		}
		e.At = timeOf(at)
		entries = append(entries, e)
		return nil
	}, "SELECT at, actor, action, reason, batch, detail FROM "+t.trail+" WHERE letter_id = ? ORDER BY id LIMIT ?", id, limit)
	if err != nil {
		return nil, fmt.Errorf("trail of dead letter %s: %w", id, err)
	}
	return entries, nil
}

func newToken() string { return uuid.NewString() }
