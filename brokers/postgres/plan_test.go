package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
)

// spoken keeps the last statement of each kind that goes through a pool.
type spoken struct {
	mu   sync.Mutex
	last map[string]pgx.TraceQueryStartData
}

func (s *spoken) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	for kind, part := range map[string]string{"fetch": "\nSELECT r.bucket, r.id", "remove": "CROSS JOIN LATERAL (SELECT ctid", "promote": "WITH due AS"} {
		if strings.Contains(data.SQL, part) && !strings.HasPrefix(data.SQL, "EXPLAIN") {
			s.mu.Lock()
			s.last[kind] = data
			s.mu.Unlock()
		}
	}
	return ctx
}

func (*spoken) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *spoken) of(kind string) pgx.TraceQueryStartData {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[kind]
}

// tracedEnv is an env whose statements are kept.
func tracedEnv(t *testing.T) (*env, *spoken) {
	said := &spoken{last: map[string]pgx.TraceQueryStartData{}}
	return newEnv(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = said }), said
}

// blocks is how many blocks of tables and indexes a statement touches. What it does is undone.
func (e *env) blocks(q pgx.TraceQueryStartData) int {
	e.Helper()
	tx, err := e.pool.Begin(e.Context())
	if err != nil {
		e.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	args := slices.DeleteFunc(slices.Clone(q.Args), func(a any) bool { _, ok := a.(pgx.QueryExecMode); return ok })
	var text []byte
	if err := tx.QueryRow(e.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+q.SQL, args...).Scan(&text); err != nil {
		e.Fatalf("explain %s: %v", q.SQL, err)
	}
	var plan []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(text, &plan); err != nil || len(plan) != 1 {
		e.Fatalf("plan %s: %v", text, err)
	}
	return plan[0].Plan.Hit + plan[0].Plan.Read
}

// O9: a snapshot that is older than all messages keeps the index entries of all that were acked. Whoever reads from the
// first one walks over them each time.
func TestO9OldSnapshotSlowsNoReading(t *testing.T) {
	e, said := tracedEnv(t)
	b := open(t, e.config())
	if err := b.Register(t.Context(), "orders", "c"); err != nil {
		t.Fatal(err)
	}
	tx, err := e.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT count(*) FROM "+e.table("group")); err != nil {
		t.Fatal(err)
	}
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 256)
	handle := func(n int) {
		e.exec("INSERT INTO "+e.table("message")+" (group_id, bucket, uuid) SELECT g.id, n % 64, n FROM "+e.table("group")+" g, generate_series(1, $1::int) n", n)
		ack(t, in, n)
		e.eventually("acked messages are deleted", func() bool { return e.rows() == 0 })
	}
	// What is proven is known a moment later: look until it is. Each dead entry that is walked over costs a block at least.
	settles := func(kind string, most int) (n int) {
		adaptertest.Eventually(t, func() (bool, string) {
			handle(1)
			n = e.blocks(said.of(kind))
			return n <= most, fmt.Sprintf("%s touches %d blocks; want at most %d", kind, n, most)
		})
		return n
	}
	handle(4_000)
	fetch, remove := settles("fetch", 1_000), settles("remove", 1_000)
	handle(12_000)
	e.exec("ANALYZE " + e.table("message")) // as autovacuum does: the statistics now say that the table is empty
	t.Logf("beside an old snapshot fetch touches %d blocks after 4,000 messages and %d after 16,000, remove %d and %d",
		fetch, settles("fetch", fetch+fetch/2), remove, settles("remove", remove+remove/2+64))
}

// The clock in the condition was none for the index: each look read all of the topic that is for later.
func TestPromoteReadsOnlyWhatIsDue(t *testing.T) {
	e, said := tracedEnv(t)
	b := open(t, e.config())
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 4)
	add := func(n int, available string) {
		e.exec("INSERT INTO "+e.table("delayed")+" (topic, bucket, uuid, available_at) SELECT 'orders', 1, n, clock_timestamp() + "+available+
			" FROM generate_series(1, $1::int) n", n)
	}
	measure := func() int { return e.blocks(said.of("promote")) }
	e.eventually("somebody looks for what is due", func() bool { return said.of("promote").SQL != "" })
	add(10_000, "interval '1 day'")
	few := measure()
	add(30_000, "interval '1 day'")
	if many := measure(); many > few+few/4 {
		t.Errorf("beside 10,000 messages for later promote touches %d blocks, beside 40,000 %d; want as many", few, many)
	}
	at := time.Now().Truncate(time.Microsecond)
	add(1, "interval '100 ms'")
	m := adaptertest.Next(t, in)
	if got := brokers.DeliveryOf(m.Context()).Time; got.Before(at.Add(50 * time.Millisecond)) { // two clocks
		t.Errorf("Delivery.Time is %v before the message was due; want when it was: from then on it waits to be handled", at.Add(100*time.Millisecond).Sub(got))
	}
	m.Ack()
}

// Of a comparison of rows only the first column ends a walk over the index. That was the group: each read of a bucket with few messages
// walked over those of all the buckets behind it, and beside one with a million a page took seconds.
func TestFullBucketDoesNotSlowTheReadingOfOthers(t *testing.T) {
	e, said := tracedEnv(t)
	b := open(t, e.config())
	adaptertest.Subscribe(t, b, "c", "orders", 1)
	e.eventually("the consumer has all buckets", func() bool { q := said.of("fetch"); return q.SQL != "" && len(q.Args[1].([]int16)) == 64 })
	idle := said.of("fetch")
	var touched []int
	for _, n := range []int{10_000, 30_000} {
		e.exec("INSERT INTO "+e.table("message")+" (group_id, bucket, uuid) SELECT g.id, 60, n FROM "+e.table("group")+" g, generate_series(1, $1::int) n", n)
		touched = append(touched, e.blocks(idle))
	}
	if touched[1] > touched[0]+touched[0]/2 {
		t.Errorf("beside a bucket of 10,000 and of 40,000 messages a page touches %d blocks; want as many", touched)
	}
}
