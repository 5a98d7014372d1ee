package pgxstore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// clock_timestamp() in the condition was no condition for the index, which Promote walked to its end at each call: with
// millions of messages for next week it took longer than the relay waits, and nothing was promoted any more.
func TestPromoteReadsOnlyWhatIsDue(t *testing.T) {
	store, rec := outboxStore(t), &recorder{last: map[string]pgx.TraceQueryStartData{}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	traced := outboxStoreAt(t, store, func(c *pgxpool.Config) { c.ConnConfig.Tracer = rec })
	delayed := strings.Replace(outboxTable(t, store), "headrace_outbox", "headrace_outbox_delayed", 1)
	add := func(n int, available string) {
		if _, err := store.Pool().Exec(ctx, "INSERT INTO "+delayed+" (topic, bucket, msg_key, uuid, metadata, available_at)"+
			" SELECT 't', 1, 'k', n, '{}', clock_timestamp() + "+available+" FROM generate_series(1, $1::int) n", n); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := traced.Outbox().Promote(ctx, 500); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	promote := rec.last["Promote"]

	// Without statistics, as a table that has just filled, and with them; the plan for these arguments and that for any.
	measure := func(mode string) (blocks int) {
		tx, err := store.Pool().Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.WithoutCancel(ctx)) // undoes what EXPLAIN has done
		for _, sql := range []string{"SET LOCAL plan_cache_mode = " + mode, "PREPARE promote AS " + promote.SQL} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				t.Fatal(err)
			}
		}
		defer tx.Exec(ctx, "DEALLOCATE promote") //nolint:errcheck // before the ROLLBACK
		return explained(ctx, t, tx, "EXECUTE promote (500)")
	}
	const few, many = 20_000, 60_000
	add(10, "interval '-1 minute'")
	add(few, "n * interval '1 minute'")
	var before []int
	for _, n := range []int{few, many} {
		var got []int
		for _, stat := range []string{"", "ANALYZE " + delayed} {
			if _, err := store.Pool().Exec(ctx, stat); err != nil {
				t.Fatal(err)
			}
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				got = append(got, measure(mode))
			}
		}
		t.Logf("beside %d messages for later: %d blocks", n, got)
		if n == few {
			before = got
			add(many-few, "n * interval '1 minute'")
			continue
		}
		for i := range got {
			if got[i] > before[i]+before[i]/4 {
				t.Errorf("10 are due: beside %d messages for later Promote touches %d blocks, beside %d %d; want as many", few, before, many, got)
				break
			}
		}
	}
	if n, err := traced.Outbox().Promote(ctx, 500); n != 10 || err != nil {
		t.Error(fmt.Errorf("promoted %d, %w; want what is due", n, err))
	}
}
