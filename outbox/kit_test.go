package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/outbox"
)

// broker is a publisher that records what it confirmed. before is asked first, outside of its lock, and
// may block or refuse.
type broker struct {
	before func(topic string, msgs []*message.Message) error

	mu     sync.Mutex
	got    []string // topic/id
	msgs   []*message.Message
	at     map[string]time.Time
	batch  int // the largest
	called int
}

func (b *broker) Publish(topic string, msgs ...*message.Message) error {
	b.mu.Lock()
	b.called++
	b.batch = max(b.batch, len(msgs))
	b.mu.Unlock()
	if b.before != nil {
		if err := b.before(topic, msgs); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range msgs {
		b.got = append(b.got, topic+"/"+m.UUID)
		if b.at == nil {
			b.at = map[string]time.Time{}
		}
		b.at[m.UUID] = time.Now()
	}
	b.msgs = append(b.msgs, msgs...)
	return nil
}

func (b *broker) Close() error { return nil }

func (b *broker) published() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got)
}

func (b *broker) calls() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.called
}

// add commits one message with a key to topic.
func add(t *testing.T, m *outboxsuite.Memory, topic, key string, ids ...string) {
	t.Helper()
	tx := m.Begin()
	for _, id := range ids {
		insert(t, m, tx, topic, key, id)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func insert(t *testing.T, m *outboxsuite.Memory, tx *outboxsuite.MemoryTx, topic, key, id string) {
	t.Helper()
	msg := message.NewMessage(id, []byte("payload of "+id))
	if key != "" {
		msg.Metadata[event.MetaPartitionKey] = key
	}
	if err := outbox.Add(t.Context(), m, tx, topic, msg); err != nil {
		t.Fatal(err)
	}
}

func names(prefix string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s%04d", prefix, i)
	}
	return list
}

// running is a relay that runs.
type running struct {
	*outbox.Relay
	cancel context.CancelFunc
	done   chan error
}

func run(t *testing.T, src outbox.Source, pub message.Publisher, cfg outbox.RelayConfig) *running {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	r, err := outbox.NewRelay(src, pub, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	x := &running{r, cancel, make(chan error, 1)}
	go func() { x.done <- r.Run(ctx) }()
	t.Cleanup(cancel)
	return x
}

// stop ends the relay and returns what Run returned.
func (x *running) stop(t *testing.T) error {
	t.Helper()
	x.cancel()
	return <-x.done
}

func (x *running) mustStop(t *testing.T) {
	t.Helper()
	if err := x.stop(t); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func wantPublished(t *testing.T, when string, b *broker, want ...string) {
	t.Helper()
	if got := b.published(); !slices.Equal(got, want) {
		t.Errorf("%s: published %q, want %q", when, got, want)
	}
}

func wantBacklog(t *testing.T, when string, m *outboxsuite.Memory, want outbox.Backlog) {
	t.Helper()
	if got, err := m.Backlog(context.Background(), 1_000_000); err != nil || got != want {
		t.Errorf("%s: backlog %+v, %v; want %+v", when, got, err, want)
	}
}
