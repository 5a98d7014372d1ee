package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/integration/history"
)

// findings are counts that must be zero, of the tables that a pipeline left.
var findings = []struct {
	name, query string
	order       bool // asked where there is order
}{
	{"lost events", "SELECT count(*) FROM {s}.made m WHERE " + withoutOutcome, false},
	{"events that were never made and took effect", "SELECT count(*) FROM {s}.effect e WHERE NOT EXISTS (SELECT FROM {s}.made m WHERE m.key = e.key AND m.seq = e.seq)", false},
	{"doubled effects", "SELECT count(*) - count(DISTINCT (key, seq)) FROM {s}.effect", false},
	{"effects that came after a later one of their key", "SELECT count(*) FROM {s}.effect WHERE prev > seq", true},
	{"effects of events that cannot be handled", "SELECT count(*) FROM {s}.effect e JOIN {s}.made m USING (key, seq) WHERE m.poison", false},
	{"events that cannot be handled and have no dead letter", "SELECT count(*) FROM {s}.made m WHERE poison AND NOT EXISTS (SELECT FROM {s}.dead d WHERE d.key = m.key AND d.seq = m.seq)", false},
	{"dead letters of events that can be handled", "SELECT count(*) FROM {s}.dead d WHERE NOT EXISTS (SELECT FROM {s}.made m WHERE m.key = d.key AND m.seq = d.seq AND m.poison)", false},
	{"dead letters that came twice", "SELECT count(*) - count(DISTINCT (key, seq)) FROM {s}.dead", false},
	{"rows left in the outbox", "SELECT count(*) FROM {s}.headrace_outbox", false},
	{"dead rows of the outbox", "SELECT count(*) FROM {s}.headrace_outbox_dead", false},
	{"claims without an effect, or effects without a claim", "SELECT abs((SELECT count(*) FROM {s}.effect) - (SELECT count(*) FROM {s}.headrace_inbox WHERE consumer = '{c}'))", false},
}

// verdict is what became of a pipeline.
type verdict struct {
	Pipeline, Broker                       string
	Made, Effects, Poison, Dead            int64
	Attempts, Failed, Copies, Acks, Places int
	Counts                                 counts
	// Broken is empty if every promise was kept.
	Broken []string
	// Rules are the names of what was broken in the history.
	Rules map[history.Rule]int
}

func (p *pipeline) verdict(ctx context.Context) (verdict, error) {
	v := verdict{Pipeline: p.spec.Pipeline, Broker: p.spec.Broker}
	p.mu.Lock()
	v.Counts, v.Broken = p.counted, p.violations
	p.mu.Unlock()
	err := p.r.pool.QueryRow(ctx, p.in("SELECT (SELECT count(*) FROM {s}.made), (SELECT count(*) FROM {s}.effect), (SELECT count(*) FROM {s}.made WHERE poison), (SELECT count(*) FROM {s}.dead)")).
		Scan(&v.Made, &v.Effects, &v.Poison, &v.Dead)
	if err != nil {
		return v, err
	}
	options := history.Options{All: true, Drained: true, Limit: 5}
	if !ordered(p.spec.Broker) {
		options.Unordered = []string{p.spec.effects()}
	}
	for _, f := range findings {
		if f.order && !ordered(p.spec.Broker) {
			continue
		}
		var n int64
		if err := p.r.pool.QueryRow(ctx, p.in(f.query)).Scan(&n); err != nil {
			return v, fmt.Errorf("%s: %w", f.name, err)
		}
		if n != 0 {
			v.Broken = append(v.Broken, fmt.Sprintf("%d %s", n, f.name))
		}
	}
	records, err := p.records(ctx)
	if err != nil {
		return v, err
	}
	h := history.Check(records, options)
	v.Attempts, v.Failed = h.Counts[history.Start], h.Counts[history.Failed]
	v.Copies, v.Acks, v.Rules = h.Counts[history.Skipped], h.Counts[history.Ack], h.Broken
	// Copies are not judged: a relay that dies between the confirmation and the delete makes them, and nobody knows of how many.
	delete(v.Rules, history.UnexplainedDuplicate)
	for _, x := range h.Violations {
		if x.Rule != history.UnexplainedDuplicate {
			v.Broken = append(v.Broken, "history: "+x.String())
		}
	}
	return v, nil
}

func (p *pipeline) in(query string) string {
	return strings.NewReplacer("{s}", p.spec.schema(), "{c}", p.spec.effects()).Replace(query)
}

// records are those of the consumers, merged with the tables' events and effects. The time of an effect is that at which its
// transaction was committed, by the server.
func (p *pipeline) records(ctx context.Context) (all []history.Record, err error) {
	rows, err := p.r.pool.Query(ctx, p.in("SELECT key, seq FROM {s}.made ORDER BY key, seq"))
	if err != nil {
		return nil, err
	}
	all, err = pgx.AppendRows(all, rows, func(row pgx.CollectableRow) (history.Record, error) {
		var m made
		err := row.Scan(&m.Key, &m.Seq)
		return history.Record{Kind: history.Published, ID: m.id(), Key: m.Key, Seq: m.Seq}, err
	})
	if err != nil {
		return nil, err
	}
	names, err := filepath.Glob(filepath.Join(p.r.dir, p.spec.Pipeline+"-"+string(consumer)+"-*.jsonl"))
	if err != nil {
		return nil, err
	}
	var logs []io.Reader
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		logs = append(logs, f)
	}
	// The checker reads logs: what the table says is one more of them.
	table, written := io.Pipe()
	go func() { written.CloseWithError(p.writeEffects(ctx, written)) }()
	defer table.Close() //nolint:errcheck // a pipe's never fails
	merged, err := history.Read(append(logs, table)...)
	return append(all, merged...), err
}

func (p *pipeline) writeEffects(ctx context.Context, w io.Writer) error {
	rows, err := p.r.pool.Query(ctx, p.in("SELECT key, seq, process, (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint FROM {s}.effect ORDER BY 4, n"))
	if err != nil {
		return err
	}
	var m made
	var process string
	var micros int64
	_, err = pgx.ForEachRow(rows, []any{&m.Key, &m.Seq, &process, &micros}, func() error {
		_, err := fmt.Fprintf(w, `{"t":%d,"kind":%q,"process":%q,"consumer":%q,"id":%q,"key":%q}`+"\n", micros*1000, history.Effect, process, p.spec.effects(), m.id(), m.Key)
		return err
	})
	return err
}
