package deadletter_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/stores/sqlite"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		victim()
		return
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

// limit bounds every wait.
const limit = 30 * time.Second

// openSQLite returns a migrated store in a file of its own.
func openSQLite(t testing.TB, path string) *sqlstore.Store {
	t.Helper()
	if path == "" {
		path = filepath.Join(t.TempDir(), "x.db")
	}
	store, err := openPath(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := store.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return store
}

func openPath(path string) (*sqlstore.Store, error) {
	return sqlite.Open(path, sqlite.WithSynchronous(sqlite.SynchronousNormal))
}

func newStore(t testing.TB, table deadletter.Table, p ...deadletter.Protection) *deadletter.Store {
	t.Helper()
	var protection deadletter.Protection
	if len(p) > 0 {
		protection = p[0]
	}
	s, err := deadletter.NewStore(table, protection)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// record is the n-th dead letter of billing.orders.
func record(n int, change ...func(*poison.Record)) poison.Record {
	r := poison.Record{
		ID: fmt.Sprintf("dead-%03d", n), Version: 1, Consumer: "billing.orders", Topic: "orders", Partition: -1, Offset: int64(n + 1),
		Key: fmt.Appendf(nil, "order-%d", n%3), Payload: fmt.Appendf(nil, `{"n":%d}`, n), UUID: fmt.Sprintf("u-%d", n),
		MessageID: fmt.Sprintf("ce:/shop e-%d", n),
		Metadata: map[string]string{
			"ce_specversion": "1.0", "ce_id": fmt.Sprintf("e-%d", n), "ce_source": "/shop", "ce_type": "order.placed",
			"ce_subject": "person-1", "ce_partitionkey": fmt.Sprintf("order-%d", n%3),
		},
		Attempts: 5, Deaths: 1, Verdict: classify.VerdictPoison, ErrorType: "timeout", Error: "warehouse is down",
		FirstFailure: start, LastFailure: start.Add(time.Duration(n) * time.Second), Fingerprint: "0123456789abcdef",
	}
	for _, f := range change {
		f(&r)
	}
	return r
}

func fill(t testing.TB, s *deadletter.Store, n int) {
	t.Helper()
	records := make([]poison.Record, n)
	for i := range records {
		records[i] = record(i)
	}
	if added, err := s.Add(t.Context(), records...); err != nil || added != n {
		t.Fatalf("Add: %d, %v; want %d", added, err, n)
	}
}

// channel is a publisher that keeps what it gets, unless refuse says no.
type channel struct {
	mu     sync.Mutex
	refuse func(topic string, m *message.Message) error
	topics []string
	got    []*message.Message
	calls  int
}

func (c *channel) Publish(topic string, messages ...*message.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	for _, m := range messages {
		if c.refuse != nil {
			if err := c.refuse(topic, m); err != nil {
				return err
			}
		}
		c.topics, c.got = append(c.topics, topic), append(c.got, m)
	}
	return nil
}

func (c *channel) Close() error { return nil }

// ids are the dead letters that came through, each as often as it did.
func (c *channel) ids() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := make([]string, len(c.got))
	for i, m := range c.got {
		ids[i] = m.UUID
	}
	return ids
}

func redriver(t testing.TB, source deadletter.Source, pub message.Publisher, change ...func(*deadletter.RedriveConfig)) *deadletter.Redriver {
	t.Helper()
	c := deadletter.RedriveConfig{Source: source, Publisher: pub, Actor: "ann", Reason: "ticket 812", Batch: "batch-1"}
	for _, f := range change {
		f(&c)
	}
	r, err := deadletter.NewRedriver(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func states(t testing.TB, s *deadletter.Store) map[deadletter.State]int64 {
	t.Helper()
	counts, err := s.Count(context.Background(), deadletter.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

func wantIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("dead-%03d", i)
	}
	return ids
}
