package crash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/integration/history"
)

// findings are counts that must be zero, by name, of the tables that are left.
var findings = []struct{ name, query string }{
	{"changes of a key that are not its numbers in a row", `SELECT count(*) FROM crash_key k WHERE seq <> (SELECT count(DISTINCT seq) FROM crash_made m WHERE m.key = k.key)
		OR seq <> (SELECT coalesce(max(seq), 0) FROM crash_made m WHERE m.key = k.key)`},
	{"lost events", `SELECT count(*) FROM crash_made m WHERE NOT EXISTS (SELECT FROM crash_effect e WHERE e.key = m.key AND e.seq = m.seq)`},
	{"doubled effects", `SELECT count(*) - count(DISTINCT (key, seq)) FROM crash_effect`},
	{"effects of events that were rolled back", `SELECT count(*) FROM crash_effect e WHERE NOT EXISTS (SELECT FROM crash_made m WHERE m.key = e.key AND m.seq = e.seq)`},
	{"inversions in a key", `SELECT count(*) FROM (SELECT seq, lag(seq, 1, 0::bigint) OVER (PARTITION BY key ORDER BY n) AS before FROM crash_effect) e WHERE seq <> before + 1`},
	{"effects without a claim, or claims without an effect", `SELECT abs((SELECT count(*) FROM crash_effect) - (SELECT count(*) FROM headrace_inbox))`},
	{"rows left in the outbox", `SELECT count(*) FROM headrace_outbox`},
	{"dead rows of the outbox", `SELECT count(*) FROM headrace_outbox_dead`},
	{"dead letters", `SELECT count(*) FROM headrace_broker_message m JOIN headrace_broker_group g ON g.id = m.group_id WHERE g.topic <> '` + topic + `'`},
	{"deliveries left in the broker", `SELECT count(*) FROM headrace_broker_message m JOIN headrace_broker_group g ON g.id = m.group_id WHERE g.topic = '` + topic + `'`},
}

// judge adds what the tables and the history show to the report.
func (r *Report) judge(ctx context.Context, pool *pgxpool.Pool, histories string) error {
	if _, err := pool.Exec(ctx, "ANALYZE"); err != nil {
		return err
	}
	p, err := readProgress(ctx, pool)
	if err != nil {
		return err
	}
	r.Events, r.Effects = p.made, p.effects
	for _, f := range findings {
		var n int64
		if err := pool.QueryRow(ctx, f.query).Scan(&n); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if n != 0 {
			r.Broken = append(r.Broken, fmt.Sprintf("%d %s", n, f.name))
		}
	}
	if err := r.judgeDeadLetters(ctx, pool); err != nil {
		return err
	}
	return r.judgeHistory(ctx, pool, histories)
}

// judgeDeadLetters tells why: what is dead-lettered here should not be.
func (r *Report) judgeDeadLetters(ctx context.Context, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, `SELECT uuid || ': ' || metadata FROM headrace_broker_message m JOIN headrace_broker_group g ON g.id = m.group_id
		WHERE g.topic <> $1 LIMIT 10`, topic)
	if err != nil {
		return err
	}
	letters, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, letter := range letters {
		r.Broken = append(r.Broken, "dead letter: "+letter)
	}
	return err
}

// judgeHistory judges what the consumers wrote. What was published is read from the table, for a producer can die
// between its commit and its record. That deliveries come twice is not judged: a relay that dies makes copies.
func (r *Report) judgeHistory(ctx context.Context, pool *pgxpool.Pool, histories string) (err error) {
	names, err := filepath.Glob(filepath.Join(histories, "*.jsonl"))
	if err != nil {
		return err
	}
	var logs []io.Reader
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		logs = append(logs, f)
	}
	records, err := history.Read(logs...)
	if err != nil {
		return err
	}
	rows, err := pool.Query(ctx, "SELECT key, seq FROM crash_made ORDER BY key, seq")
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[made])
	if err != nil {
		return err
	}
	published := make([]history.Record, 0, len(all)+len(records))
	for _, m := range all {
		published = append(published, history.Record{Kind: history.Published, ID: m.id(), Key: m.Key, Seq: m.Seq})
	}
	v := history.Check(append(published, records...), history.Options{All: true, Drained: true, Limit: 5})
	r.Records, r.Copies = len(records), v.Counts[history.Skipped]
	r.Attempts, r.FailedAttempts = v.Counts[history.Start], v.Counts[history.Failed]
	for _, x := range v.Violations {
		if x.Rule != history.UnexplainedDuplicate {
			r.Broken = append(r.Broken, "history: "+x.String())
		}
	}
	return nil
}
