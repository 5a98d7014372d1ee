package runtime_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

// unpolled is a relay that finds nothing by itself within a test.
var unpolled = outbox.RelayConfig{PollMin: time.Hour, PollMax: time.Hour}

// published notes what relays publish, by topic.
type published struct {
	mu     sync.Mutex
	topics map[string]int
}

func (p *published) note(o outbox.Published) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.topics == nil {
		p.topics = map[string]int{}
	}
	if o.Err == nil {
		p.topics[o.Topic] += o.Rows
	}
}

func (p *published) to(topic string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.topics[topic]
}

// relayed is a runtime with an unpolled relay.
func relayed(t *testing.T) (*bench, *sqlstore.Store, *published) {
	t.Helper()
	b, store, seen := newBench(t, nil), openStore(t), &published{}
	cfg := unpolled
	cfg.Observe = seen.note
	b.rt.Relay(store.Outbox(), cfg)
	return b, store, seen
}

// Only events whose ids the runtime had made woke the relay. All others waited for its poll, for a second by default.
func TestCommitWakesTheRelayWhateverWasAdded(t *testing.T) {
	type add func(ctx context.Context, store *sqlstore.Store, tx *sql.Tx) error
	send := func(ctx context.Context, store *sqlstore.Store, tx *sql.Tx, opts ...event.Option) error {
		msg, err := event.New(ctx, "done", nil, opts...)
		if err != nil {
			return err
		}
		return outbox.Add(ctx, store, tx, "out", msg)
	}
	for name, add := range map[string]add{
		"event.New": func(ctx context.Context, s *sqlstore.Store, tx *sql.Tx) error { return send(ctx, s, tx) },
		"event.New, WithID": func(ctx context.Context, s *sqlstore.Store, tx *sql.Tx) error {
			return send(ctx, s, tx, event.WithID("mine"))
		},
		"message.NewMessage": func(ctx context.Context, s *sqlstore.Store, tx *sql.Tx) error {
			return outbox.Add(ctx, s, tx, "out", message.NewMessage("mine", nil))
		},
		"outbox.Publisher": func(ctx context.Context, s *sqlstore.Store, tx *sql.Tx) error {
			return outbox.NewPublisher(ctx, s, tx).Publish("out", message.NewMessage("mine", nil))
		},
	} {
		handlers := map[string]func(*bench, *sqlstore.Store){
			"HandleTx": func(b *bench, store *sqlstore.Store) {
				runtime.HandleTx(b.rt.Consumer("billing", "orders"), "order.placed", store,
					func(ctx context.Context, tx *sql.Tx, _ order) error { return add(ctx, store, tx) })
			},
			"HandleTx, grouped": func(b *bench, store *sqlstore.Store) {
				runtime.HandleTx(b.rt.Consumer("billing", "orders"), "order.placed", inbox.Grouped(store, inbox.GroupConfig{}),
					func(ctx context.Context, tx *sql.Tx, _ order) error { return add(ctx, store, tx) })
			},
			"HandleBatch": func(b *bench, store *sqlstore.Store) {
				runtime.HandleBatch(b.rt.Consumer("billing", "orders"), "order.placed", store, inbox.GroupConfig{},
					func(ctx context.Context, tx *sql.Tx, es []runtime.BatchEvent[order]) error {
						return add(es[0].Context(ctx), store, tx)
					})
			},
			"Handle with a transaction of its own": func(b *bench, store *sqlstore.Store) {
				runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed",
					func(ctx context.Context, _ order) error {
						return inTransaction(ctx, store, func(tx *sql.Tx) error { return add(ctx, store, tx) })
					})
			},
		}
		if name != "event.New" && name != "event.New, WithID" { // an event needs a context that tells its source
			handlers["HandleBatch, in its own context"] = func(b *bench, store *sqlstore.Store) {
				runtime.HandleBatch(b.rt.Consumer("billing", "orders"), "order.placed", store, inbox.GroupConfig{},
					func(ctx context.Context, tx *sql.Tx, _ []runtime.BatchEvent[order]) error { return add(ctx, store, tx) })
			}
		}
		for handler, register := range handlers {
			t.Run(fmt.Sprintf("%s in %s", name, handler), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b, store, seen := relayed(t)
					register(b, store)
					b.start()
					synctest.Wait() // the relay has its leases and has looked
					began := time.Now()
					b.publish("orders", placed(t, "1"))
					until(t, "the row is published", 10*time.Second, func() bool { return seen.to("out") == 1 })
					if took := time.Since(began); took > time.Second {
						t.Errorf("published %v after the message, want at once", took)
					}
					b.mustStop()
				})
			})
		}
	}
}

// An HTTP handler adds to the outbox: the relay belongs to the runtime, and nobody could tell it.
func TestWakeTellsOfWhatWasAddedOutsideOfHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, store, seen := relayed(t)
		b.rt.Wake() // nothing runs yet
		b.start()
		synctest.Wait()
		err := inTransaction(t.Context(), store, func(tx *sql.Tx) error {
			return outbox.Add(t.Context(), store, tx, "out", message.NewMessage("mine", nil))
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := seen.to("out"); n != 0 {
			t.Fatalf("%d rows were published before Wake, want the relay to know of none", n)
		}
		b.rt.Wake()
		time.Sleep(time.Second)
		if n := seen.to("out"); n != 1 {
			t.Errorf("%d rows were published after Wake, want 1", n)
		}
		b.mustStop()
		b.rt.Wake()
	})
}

// The drain ended the relays at once: what the last handlers had committed was published by another process, or at the next
// start.
func TestDrainPublishesWhatTheLastHandlersCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, store, seen := newBench(t, nil), openStore(t), &published{}
		src := &looks{Source: store.Outbox(), takes: time.Second}
		cfg := unpolled
		cfg.Observe = seen.note
		b.rt.Relay(src, cfg)
		began, end := make(chan struct{}), make(chan struct{})
		runtime.HandleTx(b.rt.Consumer("billing", "orders"), "order.placed", store, func(ctx context.Context, tx *sql.Tx, _ order) error {
			close(began)
			<-end
			return outbox.Add(ctx, store, tx, "out", message.NewMessage("last", nil))
		})
		b.start()
		time.Sleep(time.Minute)
		b.publish("orders", placed(t, "1"))
		<-began
		b.cancel()
		synctest.Wait() // the drain waits for the handler
		close(end)
		if err := b.wait(); err != nil {
			t.Errorf("Run returned %v, want nil", err)
		}
		if n := seen.to("out"); n != 1 {
			t.Errorf("%d rows were published when Run had returned, want 1", n)
		}
	})
}

// Each look is a query: consumers that add nothing cause none.
func TestCommitThatAddedNothingDoesNotWakeTheRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, store, src := newBench(t, nil), openStore(t), &looks{}
		src.Source = store.Outbox()
		b.rt.Relay(src, unpolled)
		c := b.rt.Consumer("billing", "orders")
		runtime.HandleTx(c, "order.placed", store, insertEffect)
		b.start()
		synctest.Wait()
		before := src.n.Load()
		for i := range 10 {
			b.publish("orders", placed(t, fmt.Sprint(i)))
		}
		until(t, "all committed", time.Minute, func() bool { return c.Stats().Effects == 10 })
		if n := src.n.Load() - before; n != 0 {
			t.Errorf("the relay looked %d times, want not at all", n)
		}
		b.mustStop()
	})
}

// looks counts a relay's looks for topics, which take a while.
type looks struct {
	outbox.Source
	n     atomic.Int64
	takes time.Duration
}

func (l *looks) Topics(ctx context.Context, after string, limit int) ([]outbox.Topic, error) {
	l.n.Add(1)
	time.Sleep(l.takes)
	return l.Source.Topics(ctx, after, limit)
}

// inTransaction commits what f does.
func inTransaction(ctx context.Context, store *sqlstore.Store, f func(*sql.Tx) error) error {
	tx, err := store.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return fmt.Errorf("%w, %w", err, tx.Rollback())
	}
	return tx.Commit()
}
