package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/schema"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

// L5: the window was larger than the pool. The store's bound follows the pool's.
func TestL5ConcurrencyFollowsThePool(t *testing.T) {
	for _, tc := range []struct {
		name    string
		dialect schema.Dialect
		pool    int // 0: without limit
		opts    []sqlstore.Option
		want    int
		err     string
	}{
		{"one less than the pool", schema.Postgres, 8, nil, 7, ""},
		{"a pool of one", schema.Postgres, 1, nil, 1, ""},
		{"a pool without limit", schema.MySQL, 0, nil, 32, ""},
		{"asked for", schema.Postgres, 8, []sqlstore.Option{sqlstore.WithMaxConcurrency(3)}, 3, ""},
		{"asked for without limit", schema.Postgres, 0, []sqlstore.Option{sqlstore.WithMaxConcurrency(300)}, 300, ""},
		{"more than the pool", schema.Postgres, 8, []sqlstore.Option{sqlstore.WithMaxConcurrency(8)}, 0, "max concurrency 8: the pool has 8 connections"},
		{"zero", schema.Postgres, 8, []sqlstore.Option{sqlstore.WithMaxConcurrency(0)}, 0, "max concurrency 0: want at least 1"},
		{"SQLite has one writer", schema.SQLite, 8, nil, 1, ""},
		{"unknown dialect", "oracle", 8, nil, 0, `dialect "oracle"`},
		{"schema where there is none", schema.MySQL, 8, []sqlstore.Option{sqlstore.WithSchema("x")}, 0, `schema name "x"`},
		{"dirty reads", schema.MySQL, 8, []sqlstore.Option{sqlstore.WithIsolation(sql.LevelReadUncommitted)}, 0, "isolation Read Uncommitted"},
		{"no dirty reads there", schema.Postgres, 8, []sqlstore.Option{sqlstore.WithIsolation(sql.LevelReadUncommitted)}, 7, ""},
		{"bad prefix", schema.MySQL, 8, []sqlstore.Option{sqlstore.WithTablePrefix("x y")}, 0, `table prefix "x y"`},
	} {
		db, err := sql.Open("sqlite", "file:unused.db") // opens nothing yet
		if err != nil {
			t.Fatal(err)
		}
		db.SetMaxOpenConns(tc.pool)
		store, err := sqlstore.New(db, tc.dialect, tc.opts...)
		switch {
		case tc.err != "":
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: New: %v; want an error with %q", tc.name, err, tc.err)
			}
		case err != nil || store.MaxConcurrency() != tc.want:
			t.Errorf("%s: concurrency %d, %v; want %d", tc.name, store.MaxConcurrency(), err, tc.want)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := sqlstore.New(nil, schema.SQLite); err == nil {
		t.Error("New(nil): no error")
	}
}

// The pool's connections read what was not committed: the relay published rows of transactions that then rolled back, and a group took the
// claims of such for duplicates.
func TestConnectionsThatReadTheUncommittedAreRefused(t *testing.T) {
	var name, value string
	plain := onMySQL(t, "")
	err := plain.db.QueryRow("SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')").Scan(&name, &value)
	if err != nil {
		t.Fatal(err)
	}
	plain.migrated(t)
	for _, level := range []string{"READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"} {
		p := onMySQL(t, "?"+name+"=%27"+level+"%27")
		p.opts = plain.opts // its tables are there
		store := p.store(t)
		for what, err := range map[string]error{"Check": store.Check(t.Context()), "Migrate": store.Migrate(t.Context())} {
			if level != "READ-UNCOMMITTED" {
				if err != nil {
					t.Errorf("%s under %s: %v", what, level, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), name+" of the pool's connections is "+level) {
				t.Errorf("%s under %s: %v; want an error that names the variable and its value", what, level, err)
			}
		}
	}
}

// The server closed idle connections (a restart, a firewall), and the next message failed.
func TestStaleConnectionsOfThePoolAreReplaced(t *testing.T) {
	for name, on := range map[string]func(testing.TB) place{
		"Postgres": onPostgres,
		"MySQL":    func(t testing.TB) place { return onMySQL(t, "") },
	} {
		t.Run(name, func(t *testing.T) {
			p := on(t)
			store := p.migrated(t)
			var victim int64
			own, kill := "SELECT pg_backend_pid()", "SELECT pg_terminate_backend($1)"
			if p.dialect == schema.MySQL {
				own, kill = "SELECT CONNECTION_ID()", "KILL CONNECTION ?"
			}
			first, err := p.db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			killer, err := p.db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := first.QueryRowContext(t.Context(), own).Scan(&victim); err != nil {
				t.Fatal(err)
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := killer.ExecContext(t.Context(), kill, victim); err != nil {
				t.Fatal(err)
			}
			if err := killer.Close(); err != nil {
				t.Fatal(err)
			}
			// The dead connection is one of the idle ones: it must not cost more than a retry.
			var last error
			for range 3 {
				if _, last = store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: "m"}, func(context.Context, *sql.Tx) error { return nil }); last == nil {
					break
				}
				if v := new(classify.Classifier).Classify(last).Verdict; v != classify.VerdictRetry {
					t.Errorf("a stale connection has verdict %v, want retry; error: %v", v, last)
				}
			}
			if last != nil {
				t.Errorf("Once: %v", last)
			}
		})
	}
}

// Two transactions locked two rows in different orders. The database ended one of them, and its message
// was dead-lettered.
func TestDeadlockIsWorthARetry(t *testing.T) {
	for name, on := range map[string]func(testing.TB) place{
		"Postgres": onPostgres,
		"MySQL":    func(t testing.TB) place { return onMySQL(t, "") },
	} {
		t.Run(name, func(t *testing.T) {
			p := on(t)
			store := p.migrated(t)
			execute(t, p.db, "INSERT INTO "+p.counters+" VALUES ('a', 1), ('b', 1)")
			var locked [2]chan struct{}
			for i := range locked {
				locked[i] = make(chan struct{})
			}
			errs := make(chan error, 2)
			for i, order := range [][2]string{{"a", "b"}, {"b", "a"}} {
				go func() {
					_, err := store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: order[0]}, func(ctx context.Context, tx *sql.Tx) error {
						if err := p.add(ctx, tx, order[0]); err != nil {
							return err
						}
						close(locked[i])
						<-locked[1-i]
						return p.add(ctx, tx, order[1])
					})
					errs <- err
				}()
			}
			var failed error
			for range 2 {
				if err := <-errs; err != nil {
					failed = err
				}
			}
			if v := new(classify.Classifier).Classify(failed).Verdict; failed == nil || v != classify.VerdictRetry {
				t.Errorf("deadlock: %v, verdict %v; want an error to retry", failed, v)
			}
		})
	}
}

// database/sql rolls back at the moment the context of BeginTx ends, under a handler that still runs; and
// drivers that roll back with that context close the connection.
func TestCancellationKeepsTransactionAndConnection(t *testing.T) {
	for name, on := range map[string]func(testing.TB) place{
		"SQLite":   onSQLite,
		"Postgres": onPostgres,
		"MySQL":    func(t testing.TB) place { return onMySQL(t, "") },
	} {
		t.Run(name, func(t *testing.T) {
			p := on(t)
			store := p.migrated(t)
			p.db.SetMaxOpenConns(1)
			own := map[schema.Dialect]string{schema.Postgres: "SELECT pg_backend_pid()", schema.MySQL: "SELECT CONNECTION_ID()", schema.SQLite: "SELECT 1"}[p.dialect]
			var before, after int64
			if err := p.db.QueryRowContext(t.Context(), own).Scan(&before); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			_, err := store.Once(ctx, inbox.Claim{Consumer: "c", ID: "m"}, func(ctx context.Context, tx *sql.Tx) error {
				cancel()
				// Last words, with a context of its own. Were the transaction rolled back by now, this
				// would fail, at once or a moment later.
				for range 50 {
					if err := p.add(context.WithoutCancel(ctx), tx, "m"); err != nil {
						t.Errorf("a statement in the transaction after the cancellation: %v", err)
						break
					}
				}
				return ctx.Err()
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Once: %v; want context.Canceled", err)
			}
			if err := p.db.QueryRowContext(t.Context(), own).Scan(&after); err != nil || after != before {
				t.Errorf("connection %d, %v; want the one of before, %d", after, err, before)
			}
		})
	}
}

// A handler committed by itself and then failed: half of its work was stored, under a claim, and nothing
// said so.
func TestHandlerThatCommitsItselfAndFails(t *testing.T) {
	store := onSQLite(t).migrated(t)
	errHandler := errors.New("failed after the commit")
	done, err := store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: "m"}, func(_ context.Context, tx *sql.Tx) error {
		return errors.Join(tx.Commit(), errHandler)
	})
	if done || !errors.Is(err, inbox.ErrTxEnded) || !errors.Is(err, errHandler) {
		t.Errorf("Once: %t, %v; want ErrTxEnded and the handler's error", done, err)
	}
}
