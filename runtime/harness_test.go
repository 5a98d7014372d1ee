package runtime_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlite"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is how long a test waits for what must happen.
const limit = 20 * time.Second

// quick retries at once.
var quick = middleware.RetryConfig{MaxAttempts: 3, InitialDelay: time.Millisecond, MaxDelay: time.Millisecond, MaxRetryAfter: time.Second}

type order struct {
	ID string `json:"id"`
}

// bench is a runtime on a memory broker.
type bench struct {
	t      *testing.T
	broker brokers.Broker
	rt     *runtime.Runtime
	log    *logBuffer
	cancel context.CancelFunc
	ended  chan error
}

func newBench(t *testing.T, change func(*runtime.Config)) *bench {
	t.Helper()
	broker, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := broker.Close(); err != nil {
			t.Errorf("close the broker: %v", err)
		}
	})
	b := &bench{t: t, broker: broker, log: &logBuffer{}}
	cfg := runtime.Config{
		Service: "test",
		Broker:  broker,
		Logger:  slog.New(slog.NewTextHandler(b.log, nil)),
		Policy:  runtime.Policy{Retry: quick},
	}
	if change != nil {
		change(&cfg)
	}
	if b.rt, err = runtime.New(cfg); err != nil {
		t.Fatal(err)
	}
	return b
}

// start runs the runtime until stop, or the end of the test.
func (b *bench) start() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	b.cancel, b.ended = cancel, make(chan error, 1)
	go func() { b.ended <- b.rt.Run(ctx) }()
	b.t.Cleanup(func() {
		if b.ended != nil {
			_ = b.stop()
		}
	})
}

// stop ends the run and returns what Run returned.
func (b *bench) stop() error {
	b.t.Helper()
	b.cancel()
	return b.wait()
}

// wait returns what Run returned by itself.
func (b *bench) wait() error {
	b.t.Helper()
	defer func() { b.ended = nil; b.cancel() }()
	return receive(b.t, "Run to return", b.ended)
}

// mustStop ends the run, which must have gone well.
func (b *bench) mustStop() {
	b.t.Helper()
	if err := b.stop(); err != nil {
		b.t.Fatalf("Run returned %v, want nil", err)
	}
}

func (b *bench) publish(topic string, msgs ...*message.Message) {
	b.t.Helper()
	pub, err := b.broker.Publisher()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := pub.Publish(topic, msgs...); err != nil {
		b.t.Fatal(err)
	}
}

// dead reads n dead letters of topic.
func (b *bench) dead(topic string, n int) []*message.Message {
	b.t.Helper()
	sub, err := b.broker.Subscriber(brokers.Subscription{Consumer: "dead", Topic: topic + ".DLT"})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	defer cancel()
	in, err := sub.Subscribe(ctx, topic+".DLT")
	if err != nil {
		b.t.Fatal(err)
	}
	var got []*message.Message
	for len(got) < n {
		m := receive(b.t, fmt.Sprintf("dead letter %d of %d", len(got)+1, n), in)
		m.Ack()
		got = append(got, m)
	}
	cancel()
	if err := sub.Close(); err != nil {
		b.t.Fatal(err)
	}
	return got
}

// unacked is how many messages of topic the consumer has not acked.
func (b *bench) unacked(topic, consumer string) int {
	return b.broker.(*memory.Broker).Unacked(topic, consumer)
}

// eventually waits for cond, which is asked again and again.
func (b *bench) eventually(what string, cond func() bool) {
	b.t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			b.t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// receive takes one value from ch within the limit.
func receive[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v, ok := <-ch:
		if !ok {
			t.Fatalf("channel closed while waiting for %s", what)
		}
		return v
	case <-time.After(limit):
		t.Fatalf("waited %v for %s", limit, what)
	}
	panic("unreachable")
}

// placed makes an order.placed event.
func placed(t *testing.T, id string, opts ...event.Option) *message.Message {
	t.Helper()
	return newEvent(t, "order.placed", order{ID: id}, append([]event.Option{event.WithID(id), event.WithKey("k")}, opts...)...)
}

func newEvent(t *testing.T, eventType string, data any, opts ...event.Option) *message.Message {
	t.Helper()
	m, err := event.New(event.ContextWithSource(context.Background(), "/shop"), eventType, data, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// openStore is a migrated SQLite store with the table effects(id).
func openStore(t *testing.T) *sqlstore.Store {
	t.Helper()
	store, err := sqlite.Open(filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.DB().ExecContext(t.Context(), `CREATE TABLE effects (id TEXT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	return store
}

// effects are the ids in the table effects, in order.
func effects(t *testing.T, store *sqlstore.Store) []string {
	t.Helper()
	rows, err := store.DB().QueryContext(context.Background(), `SELECT id FROM effects ORDER BY rowid`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var ids []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return ids
}

// wantParts checks that err names each part.
func wantParts(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("got error %q, want it to contain %q", err, p)
		}
	}
}

// logBuffer keeps what was logged.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

var errBroken = errors.New("broken")
