package pgxstore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// firsts is a broker that keeps the ids of each key in the order of their first publication.
type firsts struct {
	mu   sync.Mutex
	seen map[string]bool
	keys map[string][]string
}

func newFirsts() *firsts { return &firsts{seen: map[string]bool{}, keys: map[string][]string{}} }

func (f *firsts) Publish(_ string, msgs ...*message.Message) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range msgs {
		if !f.seen[m.UUID] {
			f.seen[m.UUID] = true
			key := m.Metadata[event.MetaPartitionKey]
			f.keys[key] = append(f.keys[key], m.UUID)
		}
	}
	return nil
}

func (f *firsts) Close() error { return nil }

func (f *firsts) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.seen)
}

func (f *firsts) of(key string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.keys[key])
}

// addRows commits n rows of key in one transaction.
func addRows(ctx context.Context, t *testing.T, store *pgxstore.Store, tx pgx.Tx, topic, key string, from, n int) {
	t.Helper()
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = message.NewMessage(fmt.Sprintf("%s-%06d", key, from+i), []byte("x"))
		msgs[i].Metadata[event.MetaPartitionKey] = key
	}
	if err := outbox.Add(ctx, store, tx, topic, msgs...); err != nil {
		t.Fatal(err)
	}
}

func commitRows(ctx context.Context, t *testing.T, store *pgxstore.Store, topic, key string, from, n int) {
	t.Helper()
	if err := pgx.BeginFunc(ctx, store.Pool(), func(tx pgx.Tx) error {
		addRows(ctx, t, store, tx, topic, key, from, n)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// startRelay runs a relay on src until the test ends.
func startRelay(ctx context.Context, t *testing.T, src outbox.Source, pub message.Publisher, cfg outbox.RelayConfig) *outbox.Relay {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	r, err := outbox.NewRelay(src, pub, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return r
}

// waitFor repeats f until it says true.
func waitFor(ctx context.Context, t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, ctx.Err())
		}
	}
}

// recorder keeps the last of each kind of statement that the relay reads with.
type recorder struct {
	mu   sync.Mutex
	last map[string]pgx.TraceQueryStartData
}

func (r *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	for kind, begins := range map[string]string{"Fetch": "SELECT id, bucket", "Topics": "WITH RECURSIVE", "Backlog": "SELECT count(*)", "Delete": "WITH held AS", "step": "SELECT id FROM (", "Promote": "WITH due AS"} {
		if strings.HasPrefix(data.SQL, begins) && strings.Contains(data.SQL, `headrace_outbox"`) {
			r.mu.Lock()
			r.last[kind] = data
			r.mu.Unlock()
		}
	}
	return ctx
}

func (*recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// blocks is how many blocks of tables and indexes a statement touches.
func blocks(ctx context.Context, t *testing.T, pool *pgxpool.Pool, q pgx.TraceQueryStartData) int {
	t.Helper()
	args := slices.DeleteFunc(slices.Clone(q.Args), func(a any) bool { _, ok := a.(pgx.QueryExecMode); return ok })
	return explained(ctx, t, pool, q.SQL, args...)
}

func explained(ctx context.Context, t *testing.T, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, args ...any,
) int {
	t.Helper()
	var text []byte
	if err := db.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql, args...).Scan(&text); err != nil {
		t.Fatalf("explain %s: %v", sql, err)
	}
	var plan []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(text, &plan); err != nil || len(plan) != 1 {
		t.Fatalf("plan %s: %v", text, err)
	}
	return plan[0].Plan.Hit + plan[0].Plan.Read
}

// Somebody's report has had a snapshot open since before all of this. Postgres may not forget a single index entry
// of the rows that were published and deleted since then, and a relay that reads from the first row walks over all of
// them each time. What this one reads stays the same, however many there are.
func TestO9OldSnapshotCostsTheRelayNothing(t *testing.T) {
	store, rec := outboxStore(t), &recorder{last: map[string]pgx.TraceQueryStartData{}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	traced := outboxStoreAt(t, store, func(c *pgxpool.Config) { c.ConnConfig.Tracer = rec })

	foreign, err := store.Pool().BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // it has done nothing
	if _, err := foreign.Exec(ctx, "SELECT count(*) FROM pg_class"); err != nil {
		t.Fatal(err)
	}

	// A row that may come back below the mark is looked for each time.
	desk := newDesk(ctx, t, store)
	commitRows(ctx, t, store, "t", "blocked", 0, 1)
	dead := outbox.Burial{Topic: "t", ID: desk.fetch("t", 1)[0], Block: true}
	if held, err := desk.src.Bury(ctx, "a", desk.leases[outbox.BucketOf("blocked")], dead); err != nil || !held {
		t.Fatal(held, err)
	}
	if err := desk.src.Leave(ctx, "a"); err != nil {
		t.Fatal(err)
	}

	src, b, published := traced.Outbox(), newFirsts(), 0
	r := startRelay(ctx, t, src, b, outbox.RelayConfig{PollMax: 50 * time.Millisecond})
	publish := func(n int) {
		commitRows(ctx, t, store, "t", fmt.Sprint("k", published), 0, n)
		r.Wake()
		published += n
		waitFor(ctx, t, "rows are published", func() bool { return b.count() == published })
		waitFor(ctx, t, "rows are deleted", func() bool { b, err := store.Outbox().Backlog(ctx, 1); return err == nil && b.Rows == 0 })
	}
	kinds := []string{"Fetch", "Topics", "step", "Delete", "Backlog"}
	// The mark moves on once in a few thousand rows, so look at several times.
	measure := func() map[string]int {
		least := map[string]int{}
		for range 8 {
			publish(500)
			if _, err := src.Backlog(ctx, 100); err != nil {
				t.Fatal(err)
			}
			rec.mu.Lock()
			sent := maps.Clone(rec.last)
			rec.mu.Unlock()
			for _, kind := range kinds {
				if sent[kind].SQL == "" {
					t.Fatalf("%s: the relay sent no such statement", kind)
				}
				n := blocks(ctx, t, store.Pool(), sent[kind])
				if old, found := least[kind]; !found || n < old {
					least[kind] = n
				}
			}
		}
		return least
	}
	for published < 16_000 {
		publish(2_000)
	}
	few := measure() // at 20,000
	for published < 56_000 {
		publish(2_000)
	}
	// As autovacuum does: the statistics now say that the table is empty.
	if _, err := store.Pool().Exec(ctx, "ANALYZE "+outboxTable(t, store)); err != nil {
		t.Fatal(err)
	}
	many := measure() // at 60,000
	for _, kind := range kinds {
		if many[kind] > few[kind]+few[kind]/2+10 {
			t.Errorf("%s beside an old snapshot touches %d blocks after 20,000 rows and %d after 60,000; want as many", kind, few[kind], many[kind])
		} else {
			t.Logf("%s: %d blocks after 20,000 rows, %d after 60,000", kind, few[kind], many[kind])
		}
	}
}

// A transaction takes id 1 and stays open while others commit and the relay publishes thousands. What the relay
// skips must not come to id 1. Then it commits, and the same key's next row is committed after it.
func TestO1RowOfAnOpenTransactionIsNotSkipped(t *testing.T) {
	store := outboxStore(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b := newFirsts()
	r := startRelay(ctx, t, store.Outbox(), b, outbox.RelayConfig{PollMin: time.Millisecond, PollMax: 20 * time.Millisecond})
	late, err := store.Pool().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	addRows(ctx, t, store, late, "t", "late", 0, 1)
	n := 0
	more := func(rounds int) {
		for range rounds {
			commitRows(ctx, t, store, "t", "k", n, 1_000)
			n += 1_000
			r.Wake()
			want := n
			waitFor(ctx, t, "rows are published beside the open transaction", func() bool { return len(b.of("k")) == want })
		}
	}
	more(12)
	if got := b.of("late"); len(got) != 0 {
		t.Errorf("before the commit: published %q", got)
	}
	if err := late.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	commitRows(ctx, t, store, "t", "late", 1, 1)
	r.Wake()
	waitFor(ctx, t, "the late rows are published", func() bool { return len(b.of("late")) == 2 })
	more(8)
	if got := b.of("late"); !slices.Equal(got, []string{"late-000000", "late-000001"}) {
		t.Errorf("late rows: published %q, want both in order", got)
	}
	if got := b.of("k"); len(got) != n || !slices.IsSorted(got) {
		t.Errorf("other rows: %d of %d, in order %t", len(got), n, slices.IsSorted(got))
	}
}

// Writers of 16 keys, with transactions of very different lengths that commit late, out of order, or not at all; two
// relays; a snapshot that keeps all index entries. Each key's rows are published in the order of its commits.
func TestO2LateCommitsBehindTheMarkKeepTheOrder(t *testing.T) {
	store := outboxStore(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	foreign, err := store.Pool().BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // it has done nothing
	if _, err := foreign.Exec(ctx, "SELECT count(*) FROM pg_class"); err != nil {
		t.Fatal(err)
	}
	b := newFirsts()
	for i := range 2 {
		startRelay(ctx, t, store.Outbox(), b, outbox.RelayConfig{Owner: fmt.Sprint("r", i), Page: 300, Batch: 40, PollMin: time.Millisecond, PollMax: 20 * time.Millisecond})
	}
	const keys, txs, perTx = 12, 50, 40
	var writers sync.WaitGroup
	for k := range keys {
		writers.Go(func() {
			key := fmt.Sprintf("k%02d", k)
			for i := range txs {
				tx, err := store.Pool().Begin(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				addRows(ctx, t, store, tx, "t", key, i*perTx, perTx)
				if k == 1 && i%25 == 0 { // open until much else was published
					before := b.count()
					waitFor(ctx, t, "others are published", func() bool { return b.count() >= before+9_000 || b.count() >= (keys-2)*txs*perTx })
				}
				if (k+i)%7 == 0 { // another try with the same ids
					if err := tx.Rollback(ctx); err != nil {
						t.Error(err)
					}
					if tx, err = store.Pool().Begin(ctx); err != nil {
						t.Error(err)
						return
					}
					addRows(ctx, t, store, tx, "t", key, i*perTx, perTx)
				}
				if err := tx.Commit(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	waitFor(ctx, t, "all is published", func() bool { return b.count() == keys*txs*perTx })
	for k := range keys {
		key := fmt.Sprintf("k%02d", k)
		if got := b.of(key); len(got) != txs*perTx || !slices.IsSorted(got) {
			t.Errorf("key %s: %d of %d, in order %t", key, len(got), txs*perTx, slices.IsSorted(got))
		}
	}
}

// The sequence of the ids is set back, as after a restore or a failover that lost its end. The rows with the ids that
// were skipped are found all the same.
func TestRowsWithOldIDsAreFound(t *testing.T) {
	store := outboxStore(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	src, b := store.Outbox(), newFirsts()
	r := startRelay(ctx, t, src, b, outbox.RelayConfig{PollMin: time.Millisecond, PollMax: 20 * time.Millisecond})
	for n := 0; n < 10_000; n += 1_000 {
		commitRows(ctx, t, store, "t", "k", n, 1_000)
		r.Wake()
		waitFor(ctx, t, "rows are published", func() bool { return b.count() == n+1_000 })
	}
	waitFor(ctx, t, "rows are deleted", func() bool { b, err := store.Outbox().Backlog(ctx, 1); return err == nil && b.Rows == 0 })
	if _, err := store.Pool().Exec(ctx, "ALTER TABLE "+outboxTable(t, store)+" ALTER COLUMN id RESTART WITH 1"); err != nil {
		t.Fatal(err)
	}
	commitRows(ctx, t, store, "t", "old", 0, 5)
	if _, err := src.Backlog(ctx, 1); err != nil { // as the relay does now and then
		t.Fatal(err)
	}
	waitFor(ctx, t, "the rows with old ids are published", func() bool { return len(b.of("old")) == 5 })
}
