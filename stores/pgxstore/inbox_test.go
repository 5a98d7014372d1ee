package pgxstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/headracetest/inboxsuite"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/testserver"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

var serial atomic.Int64

// place is one test's schema, with a table of its own beside ours.
type place struct {
	pool   *pgxpool.Pool
	schema string
}

func newPlace(t testing.TB, mode pgx.QueryExecMode) place {
	t.Helper()
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(testserver.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 6
	config.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	p := place{pool, fmt.Sprintf("t%d_%d", os.Getpid(), serial.Add(1))}
	t.Cleanup(func() {
		p.execute(t, "DROP SCHEMA IF EXISTS "+p.schema+" CASCADE")
		pool.Close()
	})
	p.execute(t, "CREATE SCHEMA "+p.schema)
	p.execute(t, "CREATE TABLE "+p.schema+".counters (name text PRIMARY KEY, n int NOT NULL CHECK (n > 0))")
	return p
}

func (p place) execute(t testing.TB, statement string) {
	t.Helper()
	if _, err := p.pool.Exec(context.Background(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func (p place) store(t testing.TB, opts ...pgxstore.Option) *pgxstore.Store {
	t.Helper()
	store, err := pgxstore.New(p.pool, append(opts, pgxstore.WithSchema(p.schema))...)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func (p place) migrated(t testing.TB, opts ...pgxstore.Option) *pgxstore.Store {
	t.Helper()
	store := p.store(t, opts...)
	if err := store.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return store
}

func (p place) add(ctx context.Context, tx pgx.Tx, counter string) error {
	_, err := tx.Exec(ctx, "INSERT INTO "+p.schema+".counters AS c VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET n = c.n + 1", counter)
	return err
}

func (p place) count(ctx context.Context, counter string) (n int, err error) {
	err = p.pool.QueryRow(ctx, "SELECT coalesce(sum(n), 0) FROM "+p.schema+".counters WHERE name = $1", counter).Scan(&n)
	return n, err
}

func (p place) fail(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "INSERT INTO "+p.schema+".counters VALUES ('bad', 0)")
	return err
}

func TestInbox(t *testing.T) {
	for name, mode := range map[string]pgx.QueryExecMode{
		"Prepared":       pgx.QueryExecModeCacheStatement,
		"Exec":           pgx.QueryExecModeExec,
		"SimpleProtocol": pgx.QueryExecModeSimpleProtocol, // behind old connection poolers
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, mode)
			p.migrated(t)
			inboxsuite.Run(t, func(t *testing.T) inboxsuite.Harness[pgx.Tx] {
				for _, table := range []string{"counters", "headrace_inbox", "headrace_version"} {
					p.execute(t, "DELETE FROM "+p.schema+"."+table)
				}
				return inboxsuite.Harness[pgx.Tx]{
					Store:         p.store(t),
					Unmigrated:    func(t *testing.T) inbox.Store[pgx.Tx] { return newPlace(t, mode).store(t) },
					Add:           p.add,
					Count:         p.count,
					Fail:          p.fail,
					FailureAborts: true,
					Kill: func(ctx context.Context, tx pgx.Tx) error {
						_, err := p.pool.Exec(ctx, "SELECT pg_terminate_backend($1)", tx.Conn().PgConn().PID())
						return err
					},
					End: func(ctx context.Context, tx pgx.Tx, commit bool) error {
						if commit {
							return tx.Commit(ctx)
						}
						return tx.Rollback(ctx)
					},
					Waiting: func(ctx context.Context) (bool, error) {
						var n int
						err := p.pool.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1",
							"%INSERT%"+p.schema+"%inbox%").Scan(&n)
						return n > 0, err
					},
					Analyze: func(ctx context.Context) error {
						_, err := p.pool.Exec(ctx, "ANALYZE "+p.schema+".headrace_inbox")
						return err
					},
					Idle: func() bool { return p.pool.Stat().AcquiredConns() == 0 },
				}
			})
		})
	}
}

// A handler swallowed an SQL error. The COMMIT was answered with ROLLBACK, without an error, and the
// message was acked without an effect.
func TestI8CommitAnsweredWithRollback(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	done, err := store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: "m"}, func(ctx context.Context, tx pgx.Tx) error {
		_ = p.fail(ctx, tx)
		return nil
	})
	if done || !errors.Is(err, inbox.ErrCommitRolledBack) {
		t.Errorf("Once: %t, %v; want ErrCommitRolledBack", done, err)
	}
}

// A handler sent COMMIT or ROLLBACK as text; the store's own COMMIT was then answered with COMMIT and a warning.
func TestHandlerThatEndsTheTransactionAsText(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	for _, statement := range []string{"COMMIT", "ROLLBACK"} {
		claim := inbox.Claim{Consumer: "c", ID: statement}
		done, err := store.Once(t.Context(), claim, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, statement)
			return err
		})
		if done || !errors.Is(err, inbox.ErrTxEnded) {
			t.Errorf("%s as text: Once: %t, %v; want ErrTxEnded", statement, done, err)
		}
	}
}

func TestSavepointsWork(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	done, err := store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: "m"}, func(ctx context.Context, tx pgx.Tx) error {
		savepoint, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		_ = p.fail(ctx, savepoint)
		return errors.Join(savepoint.Rollback(ctx), p.add(ctx, tx, "m"))
	})
	if !done || err != nil {
		t.Fatalf("Once: %t, %v; want true", done, err)
	}
	if n, err := p.count(t.Context(), "m"); n != 1 || err != nil {
		t.Errorf("counter %d, %v; want 1", n, err)
	}
}

func TestNewRefusesBadInput(t *testing.T) {
	config, err := pgxpool.ParseConfig("postgres://127.0.0.1/x?pool_max_conns=4")
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config) // connects to nothing
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, tc := range []struct {
		opt  pgxstore.Option
		want string
	}{
		{pgxstore.WithSchema(`x"; drop`), `schema: schema name "x\"; drop": want letters, digits and underscores, at most 63`},
		{pgxstore.WithMaxConcurrency(4), "max concurrency 4: the pool has 4 connections and one stays free; want at most 3"},
		{pgxstore.WithMaxConcurrency(0), "max concurrency 0: want at least 1"},
		{pgxstore.WithMaxConcurrency(-1), "max concurrency -1: want at least 1"},
	} {
		if _, err := pgxstore.New(pool, tc.opt); err == nil || err.Error() != "pgxstore: "+tc.want {
			t.Errorf("New: %v; want pgxstore: %s", err, tc.want)
		}
	}
	if _, err := pgxstore.New(nil); err == nil {
		t.Error("New(nil): no error")
	}
	store, err := pgxstore.New(pool)
	if err != nil || store.MaxConcurrency() != 3 {
		t.Errorf("default concurrency of a pool of 4: %d, %v; want 3", store.MaxConcurrency(), err)
	}
}
