package pgxstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/outbox"
)

// published are the payloads of the outbox, in the order of their ids.
func (p place) published(t *testing.T) []string {
	t.Helper()
	rows, err := p.pool.Query(t.Context(), "SELECT convert_from(payload, 'UTF8') FROM "+p.schema+".headrace_outbox ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// execModes are the ways in which pgx sends statements.
var execModes = map[string]pgx.QueryExecMode{
	"Prepared": pgx.QueryExecModeCacheStatement, "Describe": pgx.QueryExecModeCacheDescribe,
	"Exec": pgx.QueryExecModeExec, "SimpleProtocol": pgx.QueryExecModeSimpleProtocol,
}

func outgoing(payload string) *message.Message {
	msg := message.NewMessage("id-"+payload[:min(len(payload), 20)], []byte(payload))
	msg.Metadata[event.MetaPartitionKey] = "k"
	return msg
}

// Rows that go with the COMMIT are those of the transaction as it ends, in the order in which they were added.
func TestOutboxRowsGoWithTheCommit(t *testing.T) {
	for name, mode := range execModes {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, mode)
			store := p.migrated(t)
			for _, tc := range []struct {
				name string
				run  func(ctx context.Context, tx pgx.Tx, add func(tx pgx.Tx, payload string) error) error
				want []string // nil: nothing, and an error
			}{
				{"one", func(_ context.Context, tx pgx.Tx, add func(pgx.Tx, string) error) error { return add(tx, "a") }, []string{"a"}},
				{"several", func(_ context.Context, tx pgx.Tx, add func(pgx.Tx, string) error) error {
					return errors.Join(add(tx, "a"), add(tx, "b"), add(tx, "c"))
				}, []string{"a", "b", "c"}},
				{"a savepoint that is rolled back", func(ctx context.Context, tx pgx.Tx, add func(pgx.Tx, string) error) error {
					err := add(tx, "a")
					savepoint, berr := tx.Begin(ctx)
					return errors.Join(err, berr, add(savepoint, "lost"), add(tx, "lost too"), savepoint.Rollback(ctx), add(tx, "b"))
				}, []string{"a", "b"}},
				{"a savepoint as text", func(ctx context.Context, tx pgx.Tx, add func(pgx.Tx, string) error) error {
					err := add(tx, "a")
					_, serr := tx.Exec(ctx, "SAVEPOINT s")
					lerr := add(tx, "lost")
					_, rerr := tx.Exec(ctx, "ROLLBACK TO s")
					return errors.Join(err, serr, lerr, rerr, add(tx, "b"))
				}, []string{"a", "b"}},
				{"too many to wait", func(_ context.Context, tx pgx.Tx, add func(pgx.Tx, string) error) error {
					var err error
					for i := range 5 {
						err = errors.Join(err, add(tx, strings.Repeat(fmt.Sprint(i), 400<<10)))
					}
					return err
				}, []string{"0", "1", "2", "3", "4"}},
				{"an error", func(_ context.Context, tx pgx.Tx, add func(pgx.Tx, string) error) error {
					return errors.Join(add(tx, "a"), errors.New("failed"))
				}, nil},
				{"a swallowed statement", func(ctx context.Context, tx pgx.Tx, add func(pgx.Tx, string) error) error {
					err := add(tx, "a")
					_ = p.fail(ctx, tx)
					return err
				}, nil},
			} {
				p.execute(t, "DELETE FROM "+p.schema+".headrace_outbox")
				claim := inbox.Claim{Consumer: "c", ID: tc.name}
				buffer := make([]byte, 0, 1<<20)
				done, err := store.Once(t.Context(), claim, func(ctx context.Context, tx pgx.Tx) error {
					return tc.run(ctx, tx, func(tx pgx.Tx, payload string) error {
						msg := outgoing(payload)
						buffer = append(buffer[:0], payload...)
						msg.Payload = buffer // used again for the next
						return outbox.Add(ctx, store, tx, "topic", msg)
					})
				})
				got := p.published(t)
				for i := range got {
					got[i] = got[i][:1] // tells them apart
				}
				if done != (tc.want != nil) || (err == nil) != done || !slices.Equal(got, tc.want) {
					t.Errorf("%s: Once: %t, %.200v; published %.50q, want %q", tc.name, done, err, got, tc.want)
				}
				// Whatever happened, claim and rows belong together.
				if again, err := store.Once(t.Context(), claim, func(context.Context, pgx.Tx) error { return nil }); again == done || err != nil {
					t.Errorf("%s: the claim is there: %t, %v; want %t", tc.name, !again, err, done)
				}
			}
		})
	}
}

// The INSERT that waited for the COMMIT failed, the COMMIT behind it was skipped, and the message was acked.
func TestI8FailedInsertOfAHeldRowFailsOnce(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	p.execute(t, "ALTER TABLE "+p.schema+".headrace_outbox ADD CHECK (uuid <> 'id-bad')")
	run := func(payload string) (bool, error) {
		return store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: "m"}, func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(p.add(ctx, tx, "m"), outbox.Add(ctx, store, tx, "topic", outgoing(payload)))
		})
	}
	if done, err := run("bad"); done || err == nil || !strings.Contains(err.Error(), "outbox") {
		t.Errorf("Once: %t, %v; want an error about the outbox", done, err)
	}
	if n, err := p.count(t.Context(), "m"); n != 0 || err != nil {
		t.Errorf("counter %d, %v; want 0: the effect of the failed transaction was committed", n, err)
	}
	if done, err := run("good"); !done || err != nil {
		t.Errorf("the next attempt: %t, %v; want true", done, err)
	}
	if got := p.published(t); !slices.Equal(got, []string{"good"}) {
		t.Errorf("published %q, want good", got)
	}
}

// A deferred constraint fails in the COMMIT itself.
func TestI8DeferredConstraintFailsTheCommit(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	p.execute(t, "CREATE TABLE "+p.schema+".child (parent text REFERENCES "+p.schema+".counters DEFERRABLE INITIALLY DEFERRED)")
	for _, withRow := range []bool{false, true} {
		done, err := store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: fmt.Sprint(withRow)}, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO "+p.schema+".child VALUES ('nobody')")
			if withRow {
				err = errors.Join(err, outbox.Add(ctx, store, tx, "topic", outgoing("a")))
			}
			return err
		})
		if done || err == nil {
			t.Errorf("with a row %t: Once: %t, %v; want the constraint's error", withRow, done, err)
		}
	}
	if got := p.published(t); len(got) != 0 {
		t.Errorf("published %q, want nothing", got)
	}
}

// A goroutine that the handler left behind used the transaction after its COMMIT, on a connection that had gone
// back to the pool.
func TestTransactionIsClosedAfterTheCommit(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	for _, withRow := range []bool{false, true} {
		var kept pgx.Tx
		done, err := store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: fmt.Sprint(withRow)}, func(ctx context.Context, tx pgx.Tx) error {
			kept = tx
			if !withRow {
				return nil
			}
			return outbox.Add(ctx, store, tx, "topic", outgoing("a"))
		})
		if !done || err != nil {
			t.Fatal(done, err)
		}
		_, execErr := kept.Exec(t.Context(), "SELECT 1")
		_, beginErr := kept.Begin(t.Context())
		addErr := outbox.Add(t.Context(), store, kept, "topic", outgoing("b"))
		for name, err := range map[string]error{"Exec": execErr, "Begin": beginErr, "outbox.Add": addErr} {
			if !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("with a row %t: %s after the COMMIT: %v; want ErrTxClosed", withRow, name, err)
			}
		}
	}
}

// The rows of a whole group are one statement.
func TestRowsOfAGroupGoWithItsCommit(t *testing.T) {
	p := newPlace(t, pgx.QueryExecModeCacheStatement)
	store := p.migrated(t)
	var claims []inbox.Claim
	for i := range 100 {
		claims = append(claims, inbox.Claim{Consumer: "c", ID: fmt.Sprintf("m%03d", i)})
	}
	err := store.OnceGroup(t.Context(), claims, func(ctx context.Context, tx pgx.Tx, isNew []bool) error {
		for i, is := range isNew {
			if !is {
				return fmt.Errorf("%v is not new", claims[i])
			}
			if err := outbox.Add(ctx, store, tx, "topic", outgoing(claims[i].ID)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := p.published(t)
	if len(got) != 100 || !slices.IsSorted(got) {
		t.Errorf("published %d rows, in order %t; want 100", len(got), slices.IsSorted(got))
	}
}
