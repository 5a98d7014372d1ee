package pgxstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// journal makes a table that numbers its rows in the order in which they were inserted.
func (p place) journal(t *testing.T) (insert string, read func() string) {
	t.Helper()
	p.execute(t, "CREATE TABLE "+p.schema+".journal (n int GENERATED ALWAYS AS IDENTITY, what text NOT NULL UNIQUE)")
	return "INSERT INTO " + p.schema + ".journal (what) VALUES ($1)", func() string {
		t.Helper()
		var all string
		if err := p.pool.QueryRow(t.Context(), "SELECT coalesce(string_agg(what, ' ' ORDER BY n), '') FROM "+p.schema+".journal").Scan(&all); err != nil {
			t.Fatal(err)
		}
		return all
	}
}

// What is queued waits until something else is sent, and keeps its place before it, whatever that is.
func TestQueuedStatementsKeepTheirOrder(t *testing.T) {
	for name, mode := range execModes {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, mode)
			store := p.migrated(t)
			insert, read := p.journal(t)
			count := "SELECT count(*) FROM " + p.schema + ".journal"
			for _, tc := range []struct {
				name string
				run  func(ctx context.Context, tx pgx.Tx, queue func(pgx.Tx, string) error) error
				want string
			}{
				{"the COMMIT", func(ctx context.Context, tx pgx.Tx, queue func(pgx.Tx, string) error) error {
					var n int
					err := errors.Join(queue(tx, "a"), queue(tx, "b"), tx.Conn().QueryRow(ctx, count).Scan(&n)) // past tx
					if n != 0 {
						err = errors.Join(err, fmt.Errorf("%d statements were executed; want them to wait", n))
					}
					return err
				}, "a b"},
				{"Exec", func(ctx context.Context, tx pgx.Tx, queue func(pgx.Tx, string) error) error {
					err := queue(tx, "a")
					_, execErr := tx.Exec(ctx, insert, "b")
					return errors.Join(err, execErr, queue(tx, "c"))
				}, "a b c"},
				{"Query", func(ctx context.Context, tx pgx.Tx, queue func(pgx.Tx, string) error) error {
					err := queue(tx, "a")
					rows, queryErr := tx.Query(ctx, insert+" RETURNING what", "b")
					rows.Close()
					return errors.Join(err, queryErr, rows.Err(), queue(tx, "c"))
				}, "a b c"},
				{"QueryRow", func(ctx context.Context, tx pgx.Tx, queue func(pgx.Tx, string) error) error {
					var what string
					return errors.Join(queue(tx, "a"), tx.QueryRow(ctx, insert+" RETURNING what", "b").Scan(&what), queue(tx, "c"))
				}, "a b c"},
				{"SendBatch", func(ctx context.Context, tx pgx.Tx, queue func(pgx.Tx, string) error) error {
					var b pgx.Batch
					b.Queue(insert, "b")
					return errors.Join(queue(tx, "a"), tx.SendBatch(ctx, &b).Close(), queue(tx, "c"))
				}, "a b c"},
				{"CopyFrom", func(ctx context.Context, tx pgx.Tx, queue func(pgx.Tx, string) error) error {
					err := queue(tx, "a")
					_, copyErr := tx.CopyFrom(ctx, pgx.Identifier{p.schema, "journal"}, []string{"what"}, pgx.CopyFromRows([][]any{{"b"}}))
					return errors.Join(err, copyErr, queue(tx, "c"))
				}, "a b c"},
				{"a savepoint", func(ctx context.Context, tx pgx.Tx, queue func(pgx.Tx, string) error) error {
					err := queue(tx, "a")
					savepoint, beginErr := tx.Begin(ctx)
					return errors.Join(err, beginErr, queue(savepoint, "lost"), queue(tx, "lost too"), savepoint.Rollback(ctx), queue(tx, "b"))
				}, "a b"},
				{"a savepoint as text", func(ctx context.Context, tx pgx.Tx, queue func(pgx.Tx, string) error) error {
					err := queue(tx, "a")
					_, saveErr := tx.Exec(ctx, "SAVEPOINT s")
					lostErr := queue(tx, "lost")
					_, backErr := tx.Exec(ctx, "ROLLBACK TO s")
					return errors.Join(err, saveErr, lostErr, backErr, queue(tx, "b"))
				}, "a b"},
				// A row takes its place in its key's order when it is inserted: after the statement that locks what the key stands for.
				{"a savepoint behind a comment", func(ctx context.Context, tx pgx.Tx, queue func(pgx.Tx, string) error) error {
					err := queue(tx, "a")
					_, saveErr := tx.Exec(ctx, "-- name: Mark /* it */\n /* a /* nested */ comment */ savepoint s")
					lostErr := queue(tx, "lost")
					_, backErr := tx.Exec(ctx, "ROLLBACK TO s")
					return errors.Join(err, saveErr, lostErr, backErr, queue(tx, "b"))
				}, "a b"},
				{"a savepoint that is queued", func(ctx context.Context, tx pgx.Tx, queue func(pgx.Tx, string) error) error {
					return errors.Join(
						queue(tx, "a"), pgxstore.Queue(ctx, tx, "SAVEPOINT s"), queue(tx, "lost"), pgxstore.Queue(ctx, tx, "ROLLBACK TO s"), queue(tx, "b"))
				}, "a b"},
				{"the outbox", func(ctx context.Context, tx pgx.Tx, queue func(pgx.Tx, string) error) error {
					const rows = "INSERT INTO %[1]s.journal (what) SELECT count(*) || ' rows' FROM %[1]s.headrace_outbox"
					err := outbox.Add(ctx, store, tx, "topic", outgoing("a"))
					return errors.Join(err, pgxstore.Queue(ctx, tx, fmt.Sprintf(rows, p.schema)))
				}, "0 rows"},
				{"the outbox, with too many rows to wait", func(ctx context.Context, tx pgx.Tx, _ func(pgx.Tx, string) error) error {
					const rows = "INSERT INTO %[1]s.journal (what) SELECT count(*) || ' rows' FROM %[1]s.headrace_outbox"
					err := pgxstore.Queue(ctx, tx, fmt.Sprintf(rows, p.schema))
					for range 5 {
						err = errors.Join(err, outbox.Add(ctx, store, tx, "topic", outgoing(strings.Repeat("a", 400<<10))))
					}
					return err
				}, "0 rows"},
			} {
				p.execute(t, "TRUNCATE "+p.schema+".journal, "+p.schema+".headrace_outbox")
				done, err := store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: tc.name}, func(ctx context.Context, tx pgx.Tx) error {
					return tc.run(ctx, tx, func(tx pgx.Tx, what string) error { return pgxstore.Queue(ctx, tx, insert, what) })
				})
				if got := read(); !done || err != nil || got != tc.want {
					t.Errorf("before %s: Once: %t, %v; inserted %q, want %q", tc.name, done, err, got, tc.want)
				}
			}
		})
	}
}

// A statement that waited for the COMMIT failed: it is the handler's error, and neither it nor the claim is there.
func TestI4FailedQueuedStatementFailsOnce(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	insert, read := p.journal(t)
	p.execute(t, "INSERT INTO "+p.schema+".journal (what) VALUES ('there')")
	claim := inbox.Claim{Consumer: "c", ID: "m"}
	send := map[string]func(ctx context.Context, tx pgx.Tx) error{
		"the COMMIT": func(context.Context, pgx.Tx) error { return nil },
		"the COMMIT, with a row": func(ctx context.Context, tx pgx.Tx) error {
			return outbox.Add(ctx, store, tx, "topic", outgoing("a"))
		},
		"Exec": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT 1")
			return err
		},
		"Query": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "SELECT 1")
			rows.Close()
			return err
		},
		"QueryRow":  func(ctx context.Context, tx pgx.Tx) error { return tx.QueryRow(ctx, "SELECT 1").Scan(new(int)) },
		"SendBatch": func(ctx context.Context, tx pgx.Tx) error { return tx.SendBatch(ctx, new(pgx.Batch)).Close() },
		"CopyFrom": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{p.schema, "journal"}, []string{"what"}, pgx.CopyFromRows(nil))
			return err
		},
		"a savepoint": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Begin(ctx)
			return err
		},
	}
	for name, next := range send {
		done, err := store.Once(t.Context(), claim, func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(pgxstore.Queue(ctx, tx, insert, "new"), pgxstore.Queue(ctx, tx, insert, "there"), next(ctx, tx))
		})
		if state, ok := errors.AsType[*pgconn.PgError](err); done || !ok || state.Code != "23505" {
			t.Errorf("before %s: Once: %t, %v; want the unique violation", name, done, err)
		}
		if got := read(); got != "there" {
			t.Errorf("before %s: the table has %q, want what it had", name, got)
		}
	}
	if done, err := store.Once(t.Context(), claim, func(context.Context, pgx.Tx) error { return nil }); !done || err != nil {
		t.Errorf("the next attempt: %t, %v; want true: the claim went with the statement", done, err)
	}
}

// What waited was sent with a query whose context had ended. The handler took that for its query's failure and went on, and the COMMIT left out what had
// waited: acked, without its effect, which in a group was another message's.
func TestI4WhatCouldNotBeSentFailsOnce(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	insert, read := p.journal(t)
	ended, end := context.WithCancel(t.Context())
	end()
	swallow := func(tx pgx.Tx) {
		if err := tx.QueryRow(ended, "SELECT 1").Scan(new(int)); err == nil {
			t.Error("a query whose context has ended has succeeded")
		}
	}
	for name, run := range map[string]func(claim inbox.Claim) error{
		"a statement": func(claim inbox.Claim) error {
			_, err := store.Once(t.Context(), claim, func(ctx context.Context, tx pgx.Tx) error {
				err := pgxstore.Queue(ctx, tx, insert, "lost")
				swallow(tx)
				return err
			})
			return err
		},
		"a row of the outbox": func(claim inbox.Claim) error {
			_, err := store.Once(t.Context(), claim, func(ctx context.Context, tx pgx.Tx) error {
				err := outbox.Add(ctx, store, tx, "topic", outgoing("a"))
				if _, saveErr := tx.Begin(ended); saveErr == nil {
					t.Error("a savepoint whose context has ended was made")
				}
				return err
			})
			return err
		},
		"a neighbour's statement": func(claim inbox.Claim) error {
			return store.OnceGroup(t.Context(), []inbox.Claim{claim}, func(ctx context.Context, tx pgx.Tx, _ []bool) error {
				err := pgxstore.Queue(ctx, tx, insert, "lost")
				swallow(tx)
				return errors.Join(err, pgxstore.Queue(ctx, tx, insert, "another's"))
			})
		},
	} {
		claim := inbox.Claim{Consumer: "c", ID: name}
		if err := run(claim); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: Once returned %v; want the error of what could not be sent", name, err)
		}
		if got := read(); got != "" {
			t.Errorf("%s: inserted %q", name, got)
		}
		if done, err := store.Once(t.Context(), claim, func(context.Context, pgx.Tx) error { return nil }); !done || err != nil {
			t.Errorf("%s: the next attempt: %t, %v; want true: the claim is gone as well", name, done, err)
		}
	}
}

// A COMMIT that was queued ended the transaction, and the store's own found none, which is only a warning: the claim was gone and the message acked.
func TestQueuedEndOfTheTransactionIsRefused(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	for _, sql := range []string{"ROLLBACK", "commit;", "/* x */ End", "-- x\nABORT"} {
		claim := inbox.Claim{Consumer: "c", ID: sql}
		done, err := store.Once(t.Context(), claim, func(ctx context.Context, tx pgx.Tx) error { return pgxstore.Queue(ctx, tx, sql) })
		if done || !errors.Is(err, inbox.ErrTxEnded) {
			t.Errorf("%q: Once: %t, %v; want ErrTxEnded", sql, done, err)
		}
	}
}

// The connection was lost when the COMMIT had gone with what was queued, which was taken for the handler's own failure: after the last attempt a
// message whose effect was committed became a dead letter.
func TestI11LostCommitWithQueuedStatementsIsAnOutage(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	p.migrated(t)
	insert, read := p.journal(t)
	config := p.pool.Config()
	config.MaxConns = 1
	var link cut
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return &lossy{c, &link}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	store := place{pool, p.schema}.store(t)
	once := func(id string, fn func(ctx context.Context, tx pgx.Tx) error) (bool, error) {
		return store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: id}, fn)
	}
	for _, id := range []string{"a", "b"} { // with the first one pgx prepares the statements
		done, err := once(id, func(ctx context.Context, tx pgx.Tx) error {
			link.armed.Store(id == "b")
			return pgxstore.Queue(ctx, tx, insert, id)
		})
		if result := classify.New().Classify(err); done != (id == "a") || result.Unavailable != (id == "b") {
			t.Errorf("Once of %s: %t, %v, classified as %+v; want Unavailable for b: what has become of the COMMIT is not known", id, done, err, result)
		}
	}
	link.deaf.Store(false)
	soon, end := context.WithTimeout(t.Context(), 30*time.Second)
	defer end()
	waitFor(soon, t, "the effect is committed", func() bool { return read() == "a b" })
	if done, err := once("b", func(context.Context, pgx.Tx) error { return nil }); done || err != nil {
		t.Errorf("the next attempt: %t, %v; want a duplicate", done, err)
	}
}

// cut loses the answers to what is sent once it is armed.
type cut struct{ armed, deaf atomic.Bool }

// lossy is a connection whose answers can be lost.
type lossy struct {
	net.Conn
	*cut
}

func (c *lossy) Write(b []byte) (int, error) {
	if c.armed.Swap(false) {
		c.deaf.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *lossy) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.deaf.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// A queued statement that was too greedy was taken for the database's own failure, since it failed beside the COMMIT: its message was held for ever.
func TestI11QueuedStatementIsTheHandlersOwn(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	const greedy = "DO $$ BEGIN RAISE EXCEPTION 'out of memory' USING ERRCODE = '53200'; END $$"
	verdict := func(fn func(context.Context, pgx.Tx) error) classify.Result {
		done, err := store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: "m"}, fn)
		if done || err == nil {
			t.Errorf("Once: %t, %v; want an error", done, err)
		}
		return classify.New().Classify(err)
	}
	got := verdict(func(ctx context.Context, tx pgx.Tx) error { return pgxstore.Queue(ctx, tx, greedy) })
	want := verdict(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, greedy)
		return err
	})
	if got != want || got.Unavailable {
		t.Errorf("classified as %+v; want %+v, as one that was waited for", got, want)
	}
}

// What waits is bounded.
func TestQueueSendsWhatIsTooMuchToWait(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	insert, _ := p.journal(t)
	done, err := store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: "m"}, func(ctx context.Context, tx pgx.Tx) error {
		for i := range 1001 {
			if err := pgxstore.Queue(ctx, tx, insert, fmt.Sprint(i)); err != nil {
				return err
			}
		}
		var n int
		err := tx.Conn().QueryRow(ctx, "SELECT count(*) FROM "+p.schema+".journal").Scan(&n) // past what waits
		if n != 1000 {
			err = errors.Join(err, fmt.Errorf("%d statements were executed; want 1000", n))
		}
		return err
	})
	if !done || err != nil {
		t.Errorf("Once: %t, %v", done, err)
	}
}

// Large arguments do not wait in any number.
func TestQueueSendsWhatIsTooLargeToWait(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	p.journal(t)
	insert := "INSERT INTO " + p.schema + ".journal (what) VALUES (md5($1))"
	done, err := store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: "m"}, func(ctx context.Context, tx pgx.Tx) error {
		for i := range 3 {
			if err := pgxstore.Queue(ctx, tx, insert, fmt.Sprint(i, strings.Repeat("x", 400<<10))); err != nil {
				return err
			}
		}
		var n int
		err := tx.Conn().QueryRow(ctx, "SELECT count(*) FROM "+p.schema+".journal").Scan(&n) // past what waits
		if n != 3 {
			err = errors.Join(err, fmt.Errorf("%d statements were executed; want 3", n))
		}
		return err
	})
	if !done || err != nil {
		t.Errorf("Once: %t, %v", done, err)
	}
}

// Outside of Once it is Exec.
func TestQueueInAnotherTransactionExecutes(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	insert, read := p.journal(t)
	err := pgx.BeginFunc(t.Context(), p.pool, func(tx pgx.Tx) error { return pgxstore.Queue(t.Context(), tx, insert, "a") })
	if got := read(); err != nil || got != "a" {
		t.Errorf("Queue: %v; inserted %q, want a", err, got)
	}
	var kept pgx.Tx
	if done, err := store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: "m"}, func(_ context.Context, tx pgx.Tx) error {
		kept = tx
		return nil
	}); !done || err != nil {
		t.Fatal(done, err)
	}
	if err := pgxstore.Queue(t.Context(), kept, insert, "late"); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("Queue after the COMMIT: %v; want ErrTxClosed", err)
	}
}

// A handler of a group must find what one before it has done, and all of a group fails by one of its statements.
func TestQueueInAGroup(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	insert, read := p.journal(t)
	claims := []inbox.Claim{{Consumer: "c", ID: "1"}, {Consumer: "c", ID: "2"}, {Consumer: "c", ID: "3"}}
	run := func(last string) error {
		return store.OnceGroup(t.Context(), claims, func(ctx context.Context, tx pgx.Tx, _ []bool) error {
			var seen string
			return errors.Join(
				pgxstore.Queue(ctx, tx, insert, "a"),
				tx.QueryRow(ctx, "SELECT 'after ' || what FROM "+p.schema+".journal").Scan(&seen),
				pgxstore.Queue(ctx, tx, insert, seen),
				pgxstore.Queue(ctx, tx, insert, last),
			)
		})
	}
	if err := run("a"); err == nil || read() != "" {
		t.Errorf("a group with a failing statement: %v, inserted %q; want an error and nothing", err, read())
	}
	if err := run("b"); err != nil || read() != "a after a b" {
		t.Errorf("a group: %v, inserted %q; want a after a b", err, read())
	}
}

// An effect whose result nobody needs goes with the COMMIT.
func ExampleQueue() {
	type posting struct{ Account, Amount int64 }
	post := func(ctx context.Context, tx pgx.Tx, p posting) error {
		return pgxstore.Queue(ctx, tx, "UPDATE accounts SET balance = balance + $1 WHERE id = $2", p.Amount, p.Account)
	}
	_ = post
}
