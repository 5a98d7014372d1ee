package pgxstore_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// outboxSchemas are the names of the schemas, by store.
var outboxSchemas sync.Map

// outboxTable is the table of a store of outboxStore.
func outboxTable(t testing.TB, store *pgxstore.Store) string {
	t.Helper()
	name, ok := outboxSchemas.Load(store)
	if !ok {
		t.Fatal("not a store of outboxStore")
	}
	return pgx.Identifier{name.(string), "headrace_outbox"}.Sanitize()
}

// outboxStoreAt returns another store on the same schema, with a pool of its own.
func outboxStoreAt(t testing.TB, store *pgxstore.Store, change func(*pgxpool.Config)) *pgxstore.Store {
	t.Helper()
	name, ok := outboxSchemas.Load(store)
	if !ok {
		t.Fatal("not a store of outboxStore")
	}
	cfg := store.Pool().Config()
	change(cfg)
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	other, err := pgxstore.New(pool, pgxstore.WithSchema(name.(string)))
	if err != nil {
		t.Fatal(err)
	}
	return other
}

// outboxStore returns a store on a Postgres schema of its own.
func outboxStore(t testing.TB) *pgxstore.Store {
	t.Helper()
	url := os.Getenv("HEADRACE_POSTGRES_URL")
	if url == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("HEADRACE_POSTGRES_URL is not set: run integration/servers start")
		}
		t.Skip("HEADRACE_POSTGRES_URL is not set: run integration/servers start")
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	name := fmt.Sprintf("outbox_%d_%d", os.Getpid(), time.Now().UnixNano())
	store, err := pgxstore.New(pool, pgxstore.WithSchema(name))
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	outboxSchemas.Store(store, name)
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "DROP SCHEMA "+pgx.Identifier{name}.Sanitize()+" CASCADE"); err != nil {
			t.Error(err)
		}
	})
	return store
}

func outboxSubject(tb testing.TB) outboxsuite.Subject[pgx.Tx] {
	store := outboxStore(tb)
	return outboxsuite.Subject[pgx.Tx]{
		Source: store.Outbox(), Writer: store,
		Begin: func(ctx context.Context) (pgx.Tx, func() error, func() error, error) {
			tx, err := store.Pool().Begin(ctx)
			if err != nil {
				return nil, nil, nil, err
			}
			return tx, func() error { return tx.Commit(ctx) }, func() error { return tx.Rollback(ctx) }, nil
		},
	}
}

func TestOutbox(t *testing.T) {
	outboxsuite.Run(t, func(t *testing.T) outboxsuite.Subject[pgx.Tx] { return outboxSubject(t) })
}

func BenchmarkOutbox(b *testing.B) {
	outboxsuite.Benchmark(b, func(b *testing.B) outboxsuite.Subject[pgx.Tx] { return outboxSubject(b) })
}
