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
	for kind, begins := range map[string]string{"Fetch": "SELECT id, bucket", "Topics": "WITH RECURSIVE", "Backlog": "SELECT count(*)", "step": "SELECT id FROM ("} {
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
	var text []byte
	args := slices.DeleteFunc(slices.Clone(q.Args), func(a any) bool { _, ok := a.(pgx.QueryExecMode); return ok })
	if err := pool.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+q.SQL, args...).Scan(&text); err != nil {
		t.Fatalf("explain %s: %v", q.SQL, err)
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
// them each time. What this one reads stays the same.
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

	const rows, step = 60_000, 2_000
	b := newFirsts()
	r := startRelay(ctx, t, traced.Outbox(), b, outbox.RelayConfig{PollMax: 50 * time.Millisecond})
	for n := 0; n < rows; n += step {
		commitRows(ctx, t, store, "t", fmt.Sprint("k", n), 0, step)
		r.Wake()
		waitFor(ctx, t, "rows are published", func() bool { return b.count() == n+step })
	}
	waitFor(ctx, t, "rows are deleted", func() bool { b, err := store.Outbox().Backlog(ctx, 1); return err == nil && b.Rows == 0 })
	// Now and then a relay reads from the first row, to find late commits: one of these may be such a read, and not all.
	var sent []map[string]pgx.TraceQueryStartData
	for i := range 4 {
		commitRows(ctx, t, store, "t", fmt.Sprint("last", i), 0, 1)
		r.Wake()
		waitFor(ctx, t, "the last row is published", func() bool { return b.count() == rows+i+1 })
		rec.mu.Lock()
		sent = append(sent, maps.Clone(rec.last))
		rec.mu.Unlock()
	}

	// What a relay pays that has just begun: all of it.
	fresh := outboxStoreAt(t, store, func(c *pgxpool.Config) { c.ConnConfig.Tracer = rec })
	rec.mu.Lock()
	rec.last = map[string]pgx.TraceQueryStartData{}
	rec.mu.Unlock()
	if _, err := fresh.Outbox().Fetch(ctx, outbox.Query{Topic: "t", Buckets: []int{1}, Rows: 1, Bytes: 1}); err != nil {
		t.Fatal(err)
	}
	rec.mu.Lock()
	all := blocks(ctx, t, store.Pool(), rec.last["Fetch"])
	rec.mu.Unlock()
	for _, kind := range []string{"Fetch", "Topics", "step"} {
		if sent[0][kind].SQL == "" {
			t.Errorf("%s: the relay sent no such statement", kind)
			continue
		}
		n := all
		for _, last := range sent {
			n = min(n, blocks(ctx, t, store.Pool(), last[kind]))
		}
		if n > all/4 {
			t.Errorf("%s beside an old snapshot touches %d blocks, a read from the first row %d; want a quarter at most", kind, n, all)
		} else {
			t.Logf("%s: %d blocks; a read from the first row: %d", kind, n, all)
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
