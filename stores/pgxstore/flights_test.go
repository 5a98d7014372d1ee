package pgxstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// counted is a connection that counts what is sent through it.
type counted struct {
	net.Conn
	writes *atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// countedStore is a store on one connection. The tables are there.
func countedStore(t *testing.T, p place) (*pgxstore.Store, *atomic.Int64) {
	t.Helper()
	writes := new(atomic.Int64)
	config := p.pool.Config()
	config.MaxConns = 1
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return &counted{c, writes}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return place{pool, p.schema}.store(t), writes
}

// BEGIN goes with the claim, and rows of the outbox go with the COMMIT: what a handler costs is its own statements and two
// flights, and a group costs as much as one message.
func TestEachTransactionIsTwoFlightsAndItsStatements(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	p.migrated(t)
	insert, _ := p.journal(t)
	store, writes := countedStore(t, p)
	exec := func(ctx context.Context, tx pgx.Tx, what string) error {
		_, err := tx.Exec(ctx, insert, what)
		return err
	}
	once := func(fn func(ctx context.Context, tx pgx.Tx, id string) error) func(id string) error {
		return func(id string) error {
			done, err := store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: id}, func(ctx context.Context, tx pgx.Tx) error { return fn(ctx, tx, id) })
			if err == nil && !done {
				err = errors.New("a duplicate")
			}
			return err
		}
	}
	const members = 50
	for _, tc := range []struct {
		name string
		run  func(id string) error
		want int64
	}{
		{"a handler that does nothing", once(func(context.Context, pgx.Tx, string) error { return nil }), 2},
		{"a row of the outbox", once(func(ctx context.Context, tx pgx.Tx, id string) error {
			return outbox.Add(ctx, store, tx, "topic", outgoing(id))
		}), 2},
		{"a queued statement and a row", once(func(ctx context.Context, tx pgx.Tx, id string) error {
			return errors.Join(pgxstore.Queue(ctx, tx, insert, id), outbox.Add(ctx, store, tx, "topic", outgoing(id)))
		}), 2},
		{"one statement", once(exec), 3},
		{"one statement and a row", once(func(ctx context.Context, tx pgx.Tx, id string) error {
			return errors.Join(exec(ctx, tx, id), outbox.Add(ctx, store, tx, "topic", outgoing(id)))
		}), 3},
		{"a group with a statement each", func(id string) error {
			return group(t.Context(), store, members, id, exec)
		}, members + 2},
		{"a group with a row each", func(id string) error {
			return group(t.Context(), store, members, id, func(ctx context.Context, tx pgx.Tx, id string) error {
				return outbox.Add(ctx, store, tx, "topic", outgoing(id))
			})
		}, 2},
	} {
		if err := tc.run(tc.name + " that is prepared"); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		before := writes.Load()
		if err := tc.run(tc.name); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if got := writes.Load() - before; got != tc.want {
			t.Errorf("%s: %d flights, want %d", tc.name, got, tc.want)
		}
	}
}

// group runs fn for n messages in one group: it is complete, and begins, when all are there.
func group(ctx context.Context, store *pgxstore.Store, n int, id string, fn func(context.Context, pgx.Tx, string) error) error {
	split := make(chan error, 1)
	grouped := inbox.Grouped(store, inbox.GroupConfig{Max: n, Linger: time.Minute, OnSplit: func(_ context.Context, _ int, reason error) {
		select {
		case split <- reason:
		default:
		}
	}})
	errs := make([]error, n)
	var members sync.WaitGroup
	for i := range n {
		members.Go(func() {
			one := fmt.Sprint(id, " ", i)
			_, errs[i] = grouped.Once(ctx, inbox.Claim{Consumer: "c", ID: one}, func(ctx context.Context, tx pgx.Tx) error { return fn(ctx, tx, one) })
		})
	}
	members.Wait()
	select {
	case reason := <-split:
		errs = append(errs, fmt.Errorf("the group was split: %w", reason))
	default:
	}
	return errors.Join(errs...)
}
