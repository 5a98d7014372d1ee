package headracetest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/headracetest"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/testserver"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// openPool returns a pool whose connections have a schema of their own, with Headrace's tables and those of the shop.
func openPool(t testing.TB) (*pgxpool.Pool, *pgxstore.Store) {
	t.Helper()
	config, err := pgxpool.ParseConfig(testserver.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	own := "kit_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	config.ConnConfig.RuntimeParams["search_path"] = own
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), "CREATE SCHEMA "+own); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "DROP SCHEMA "+own+" CASCADE"); err != nil {
			t.Errorf("drop the schema: %v", err)
		}
	})
	store, err := pgxstore.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `CREATE TABLE orders (id text PRIMARY KEY, version bigint NOT NULL, cents int NOT NULL, times int NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	return pool, store
}

// postgresSpec is that of a shop on Postgres, with the store that handlers get their transactions of.
func postgresSpec(pool *pgxpool.Pool, store *pgxstore.Store, txs inbox.Store[pgx.Tx], versioned bool) headracetest.Spec {
	place := func(ctx context.Context, tx pgx.Tx, o Order) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1, $2, $3, 1) ON CONFLICT (id) DO UPDATE
			SET version = excluded.version, cents = excluded.cents, times = orders.times + 1`, o.ID, o.Version, o.Cents); err != nil {
			return err
		}
		billed, err := event.New(ctx, "order.billed", Billed{ID: o.ID, Cents: o.Cents}, event.WithKey(o.ID))
		if err != nil {
			return err
		}
		return outbox.Add(ctx, store, tx, "bills", billed)
	}
	if versioned {
		place = inbox.SkipStale(txs, func(o Order) (string, int64) { return o.ID, o.Version }, place)
	}
	return headracetest.Spec{
		Service: func(b brokers.Broker) (*runtime.Runtime, error) {
			rt, err := runtime.New(runtime.Config{Service: "shop", Broker: b, Logger: quiet()})
			if err != nil {
				return nil, err
			}
			runtime.HandleTx(rt.Consumer("shop.orders", "orders"), "order.placed", txs, place)
			return rt, nil
		},
		Topic: "orders",
		Event: func(ctx context.Context, key string, n int) (*message.Message, error) {
			return placed(ctx, key, n, 100*n)
		},
		State: func(ctx context.Context, key string) (string, error) {
			var version, cents, times int
			err := pool.QueryRow(ctx, `SELECT version, cents, times FROM orders WHERE id = $1`, key).Scan(&version, &cents, &times)
			if errors.Is(err, pgx.ErrNoRows) {
				return "none", nil
			}
			return fmt.Sprintf("version %d, %d cents, written %d times", version, cents, times), err
		},
		Publishes: []string{"order.billed"},
		Outbox:    store.Outbox(),
		Versioned: true,
	}
}

func TestConsumerOnPostgres(t *testing.T) {
	pool, store := openPool(t)
	headracetest.Consumer(t, postgresSpec(pool, store, store, true))
}

func TestConsumerOfGroupsOnPostgres(t *testing.T) {
	pool, store := openPool(t)
	headracetest.Consumer(t, postgresSpec(pool, store, inbox.Grouped(store, inbox.GroupConfig{}), true))
}

// inTwo forgets the claim: each message is a transaction of its own without one.
type inTwo struct{ *pgxstore.Store }

func (s inTwo) Once(ctx context.Context, c inbox.Claim, fn func(context.Context, pgx.Tx) error) (bool, error) {
	c.ID = uuid.NewString()
	return s.Store.Once(ctx, c, fn)
}

// An inbox that does not work is told on Postgres as on SQLite, by every guarantee that it stands for.
func TestMistakesAreToldOnPostgres(t *testing.T) {
	pool, store := openPool(t)
	v := judge(t, postgresSpec(pool, store, inTwo{store}, false))
	want := []headracetest.Guarantee{
		headracetest.GuaranteeOnce, headracetest.GuaranteeTogether, headracetest.GuaranteeVersion, headracetest.GuaranteeKillAfter,
	}
	if got := v.broken(); !slices.Equal(got, want) {
		t.Errorf("broken are %q, want %q", got, want)
	}
}
