package runtime_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/runtime"
)

// D8 The disk was full, and some transactions still found room: those that did not were dead-lettered, as messages that
// fail beside others that succeed.
func TestD8FullDiskDeadLettersNoInnocent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, realistic)
		c := b.rt.Consumer("billing", "orders")
		var full atomic.Bool
		full.Store(true)
		runtime.Handle(c, "order.placed", func(_ context.Context, o order) error {
			if strings.HasPrefix(o.ID, "large") && full.Load() {
				return fmt.Errorf("insert: %w", &pgconn.PgError{Code: "53100"})
			}
			return nil
		})
		b.start()
		for i := range 60 { // others succeed all the time
			if i%20 == 0 {
				b.publish("orders", placed(t, fmt.Sprintf("large %d", i), event.WithKey(fmt.Sprintf("large %d", i))))
			}
			b.publish("orders", placed(t, fmt.Sprint(i), event.WithKey(fmt.Sprint(i))))
			time.Sleep(10 * time.Second)
		}
		if s := c.Stats(); s.DeadLettered != 0 || s.Effects != 60 {
			t.Errorf("stats %+v after 10 minutes, want 60 effects and no dead letter", s)
		}
		full.Store(false)
		until(t, "all handled", time.Minute, func() bool { return c.Stats().Effects == 63 })
		b.mustStop()
	})
}

// An operator who knows better gets the dead letters, and a drain gives the messages back.
func TestD8OperatorAllowsDeadLettersOfAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, realistic)
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", func(_ context.Context, o order) error {
			if o.ID == "well" {
				return nil
			}
			return classify.Unavailable(errBroken)
		})
		b.publish("orders", placed(t, "1", event.WithKey("1")), placed(t, "well", event.WithKey("well")))
		b.start()
		time.Sleep(time.Hour)
		if s := c.Stats(); s.DeadLettered != 0 {
			t.Errorf("stats %+v, want no dead letter yet", s)
		}
		c.AllowDeadLetters(time.Minute)
		until(t, "the dead letter", time.Minute, func() bool { return c.Stats().DeadLettered == 1 })
		c.AllowDeadLetters(0)
		b.publish("orders", placed(t, "2", event.WithKey("2")))
		time.Sleep(time.Minute)
		b.mustStop()
		if s := c.Stats(); s.DeadLettered != 1 || s.Released != 1 {
			t.Errorf("stats %+v, want 1 dead letter, and the other released", s)
		}
	})
}

// D8 with a real database: SQLite may grow no more. Messages that need room are held, those that do not go on.
func TestD8FullDatabaseOnSQLite(t *testing.T) {
	store := openStore(t)
	execute := func(query string) (n int) {
		t.Helper()
		if err := store.DB().QueryRowContext(context.Background(), query).Scan(&n); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		return n
	}
	b := newBench(t, nil)
	c := b.rt.Consumer("billing", "orders")
	var failed atomic.Int64
	runtime.HandleTx(c, "order.placed", store, func(ctx context.Context, tx *sql.Tx, o order) error {
		if !strings.HasPrefix(o.ID, "large") {
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (id) VALUES (?)`, o.ID)
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO effects (id) VALUES (? || hex(zeroblob(100000)))`, o.ID)
		if err != nil {
			failed.Add(1)
		}
		return err
	})
	execute(fmt.Sprintf("PRAGMA max_page_count = %d", execute("PRAGMA page_count")+4))
	b.start()
	b.publish("orders", placed(t, "large", event.WithKey("large")))
	b.eventually("the large one has failed", func() bool { return failed.Load() > 0 })
	const small = 10
	for i := range small {
		b.publish("orders", placed(t, fmt.Sprint(i), event.WithKey(fmt.Sprint(i))))
	}
	b.eventually("the small ones are handled", func() bool { return c.Stats().Effects == small })
	b.eventually("the large one is held beyond its attempts", func() bool {
		return c.Breaker().Held+c.Breaker().Waiting > 0 && failed.Load() >= int64(quick.MaxAttempts)
	})
	if s := c.Stats(); s.DeadLettered != 0 {
		t.Errorf("stats %+v while it is full, want no dead letter", s)
	}
	execute("PRAGMA max_page_count = 1000000")
	b.eventually("the large one is handled", func() bool { return c.Stats().Effects == small+1 })
	b.mustStop()
	if s := c.Stats(); s.DeadLettered != 0 {
		t.Errorf("stats %+v, want no dead letter", s)
	}
}

// D8 The database refused claims for want of memory, whatever the message: a statement of ours, which no message can make fail so.
// A handler's own statement that fails so may ask for too much.
func TestD8RefusedClaimIsNoFailureOfItsMessage(t *testing.T) {
	for _, name := range []string{"Postgres", "PostgresGrouped"} {
		t.Run(name, func(t *testing.T) {
			db := onPostgres(t)
			b := newBench(t, func(c *runtime.Config) {
				c.Breaker = middleware.BreakerConfig{ProbeDelay: 5 * time.Millisecond, MaxProbeDelay: 40 * time.Millisecond}
			})
			c := b.rt.Consumer("billing", "orders")
			db.handle(c, func(id string) error {
				if id == "greedy" {
					return &pgconn.PgError{Code: "53200"}
				}
				return nil
			})
			db.refuse("%innocent%", "53200")
			b.publish("orders", placed(t, "innocent", event.WithKey("a")), placed(t, "greedy", event.WithKey("b")))
			b.start()
			n := 0
			b.eventually("the greedy one is dead", func() bool {
				n++
				b.publish("orders", placed(t, fmt.Sprint(n), event.WithKey(fmt.Sprint(n)))) // others succeed
				return c.Stats().DeadLettered > 0 && c.Stats().Retries > 20
			})
			if s := c.Stats(); s.DeadLettered != 1 {
				t.Errorf("stats %+v, want the greedy one dead-lettered alone", s)
			}
			db.refuse("", "")
			b.eventually("the innocent one is handled", func() bool { return slices.Contains(db.effects(), "innocent") })
			b.mustStop()
		})
	}
}
