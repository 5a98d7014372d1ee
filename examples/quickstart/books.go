package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/headrace-go/headrace/event"
)

// books compares what the databases hold with what is expected of them.
type books struct {
	producer, tracker, notifier *sql.DB

	lost       int
	violations int
	problems   []string
}

// maxProblems bounds what is told of each kind of mistake.
const maxProblems = 5

// check reads everything. Its error is one of reading; what does not balance is in problems.
func (b *books) check(ctx context.Context, input []webhook) error {
	x := expect(input)
	for _, step := range []func(context.Context, expectation) error{
		b.checkEffects, b.checkOrder, b.checkItems, b.checkCounts, b.checkDeadLetters, b.checkNotifications,
	} {
		if err := step(ctx, x); err != nil {
			return fmt.Errorf("read the books: %w", err)
		}
	}
	return nil
}

func (b *books) problem(format string, args ...any) {
	b.problems = append(b.problems, fmt.Sprintf(format, args...))
}

// compare tells what is missing, what there is too much of, and what is there more than once. It returns how many
// are missing.
func compare[V any](b *books, what string, want map[string]V, got map[string]int) int {
	var missing, extra, doubled []string
	for id := range want {
		if got[id] == 0 {
			missing = append(missing, id)
		}
	}
	for id, n := range got {
		if _, ok := want[id]; !ok {
			extra = append(extra, id)
		} else if n > 1 {
			doubled = append(doubled, fmt.Sprintf("%s (%d times)", id, n))
		}
	}
	for _, kind := range []struct {
		name string
		ids  []string
	}{{"missing", missing}, {"not expected", extra}, {"doubled", doubled}} {
		if len(kind.ids) > 0 {
			slices.Sort(kind.ids)
			b.problem("%s: %d %s: %s", what, len(kind.ids), kind.name, some(kind.ids))
		}
	}
	return len(missing)
}

func some(ids []string) string {
	if len(ids) > maxProblems {
		return strings.Join(ids[:maxProblems], ", ") + ", ..."
	}
	return strings.Join(ids, ", ")
}

// checkEffects compares the effects and the claims in the inbox. A stale message leaves a claim and nothing else.
func (b *books) checkEffects(ctx context.Context, x expectation) error {
	effects, err := count(ctx, b.tracker, `SELECT id, COUNT(*) FROM effects GROUP BY id`)
	if err != nil {
		return err
	}
	b.lost += compare(b, "effects", x.effects, effects)

	claims, err := count(ctx, b.tracker, `SELECT id, 1 FROM headrace_inbox WHERE consumer = ?`, trackerConsumer)
	if err != nil {
		return err
	}
	skipped := map[string]int{}
	for claim := range claims {
		if id := strings.TrimPrefix(claim, "ce:"+githubSource+" "); effects[id] == 0 {
			skipped[id] = 1
		}
	}
	b.lost += compare(b, "stale messages", x.stale, skipped)

	traces, err := collect(ctx, b.producer, `SELECT id || ' ' || trace_id, '' FROM sent`)
	if err != nil {
		return err
	}
	hops, err := rows(ctx, b.tracker, `SELECT id, correlation_id, trace_id FROM effects`, 3)
	if err != nil {
		return err
	}
	for _, hop := range hops {
		id, correlation, trace := hop[0], hop[1], hop[2]
		if correlation != id {
			b.problem("effect %s has the correlation id %q: want its own, it began the chain", id, correlation)
		}
		if _, ok := traces[id+" "+trace]; !ok {
			b.problem("effect %s was in the trace %s, in which nobody sent it", id, trace)
		}
	}
	return nil
}

func (b *books) checkOrder(ctx context.Context, _ expectation) error {
	violations, err := rows(ctx, b.tracker, `SELECT id, key, sequence, behind FROM violations`, 4)
	b.violations = len(violations)
	for _, v := range violations[:min(len(violations), maxProblems)] {
		b.problem("order of %s: %s, number %s, took effect after number %s", v[1], v[0], v[2], v[3])
	}
	return err
}

func (b *books) checkItems(ctx context.Context, x expectation) error {
	got, err := collect(ctx, b.tracker, `SELECT repository || '/' || kind || '/' || number, state || ' ' || title || ' ' || version FROM items`)
	if err != nil {
		return err
	}
	want := map[string]string{}
	for key, i := range x.items {
		want[key] = fmt.Sprintf("%s %s %d", i.State, i.Title, i.version())
	}
	b.equal("item", want, got)
	return nil
}

func (b *books) checkCounts(ctx context.Context, x expectation) error {
	got, err := collect(ctx, b.tracker, `SELECT event_type, deliveries FROM counts`)
	if err != nil {
		return err
	}
	want := map[string]string{}
	for eventType, n := range x.counts {
		want[eventType] = fmt.Sprint(n)
	}
	b.equal("count of", want, got)
	return nil
}

// equal compares two tables of texts.
func (b *books) equal(what string, want, got map[string]string) {
	all := maps.Clone(want)
	maps.Copy(all, got)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if want[key] != got[key] {
			b.problem("%s %s: got %q, want %q", what, key, got[key], want[key])
		}
	}
}

// checkDeadLetters also compares them byte for byte with what was sent.
func (b *books) checkDeadLetters(ctx context.Context, x expectation) error {
	got := map[string]int{}
	rows, err := b.tracker.QueryContext(ctx, `SELECT uuid, payload IS NULL, payload, metadata FROM dead_letters`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var uuid, metadata string
		var isNil bool
		var payload []byte
		if err := rows.Scan(&uuid, &isNil, &payload, &metadata); err != nil {
			return err
		}
		if !isNil && payload == nil {
			payload = []byte{} // SQLite's driver reads both as nil
		}
		got[uuid]++
		if sent, ok := x.dead[uuid]; ok {
			b.checkOriginal(sent, payload, metadata)
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	b.lost += compare(b, "dead letters", x.dead, got)
	return nil
}

func (b *books) checkOriginal(sent webhook, payload []byte, text string) {
	m := sent.message
	if !bytes.Equal(payload, m.Payload) || (payload == nil) != (m.Payload == nil) {
		b.problem("dead letter %s has the payload %.40q: want %.40q", m.UUID, payload, m.Payload)
	}
	var metadata map[string]string
	if err := json.Unmarshal([]byte(text), &metadata); err != nil {
		b.problem("dead letter %s: metadata: %v", m.UUID, err)
		return
	}
	delete(metadata, event.MetaTraceParent) // of the publish
	b.equal("dead letter "+m.UUID+": metadata", m.Metadata, metadata)
}

// checkNotifications follows correlation, causation and trace over the second hop.
func (b *books) checkNotifications(ctx context.Context, x expectation) error {
	origins, err := collect(ctx, b.tracker, `SELECT id, correlation_id || ' ' || trace_id FROM effects`)
	if err != nil {
		return err
	}
	notifications, err := rows(ctx, b.notifier, `SELECT causation_id, correlation_id, trace_id FROM notifications`, 3)
	if err != nil {
		return err
	}
	got := map[string]int{}
	for _, n := range notifications {
		cause, hop := n[0], n[1]+" "+n[2]
		got[cause]++
		if hop != origins[cause] {
			b.problem("notification caused by %s: correlation id and trace are %s: want those of the effect, %s", cause, hop, origins[cause])
		}
	}
	compare(b, "notifications", x.changes, got)
	return nil
}

// count reads a table of names and numbers.
func count(ctx context.Context, db *sql.DB, query string, args ...any) (map[string]int, error) {
	counts := map[string]int{}
	return counts, each(ctx, db, query, args, func(r *sql.Rows) error {
		var name string
		var n int
		err := r.Scan(&name, &n)
		counts[name] = n
		return err
	})
}

// collect reads a table of names and texts.
func collect(ctx context.Context, db *sql.DB, query string) (map[string]string, error) {
	texts := map[string]string{}
	return texts, each(ctx, db, query, nil, func(r *sql.Rows) error {
		var name, text string
		err := r.Scan(&name, &text)
		texts[name] = text
		return err
	})
}

// rows reads rows of texts.
func rows(ctx context.Context, db *sql.DB, query string, columns int) ([][]string, error) {
	var all [][]string
	err := each(ctx, db, query, nil, func(r *sql.Rows) error {
		row, into := make([]string, columns), make([]any, columns)
		for i := range row {
			into[i] = &row[i]
		}
		err := r.Scan(into...)
		all = append(all, row)
		return err
	})
	return all, err
}

func each(ctx context.Context, db *sql.DB, query string, args []any, row func(*sql.Rows) error) error {
	r, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer r.Close()
	for r.Next() {
		if err := row(r); err != nil {
			return err
		}
	}
	return r.Err()
}
