package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

// The handler's transaction was the victim of a deadlock, the handler swallowed the error, and went on. MySQL had
// rolled back the whole transaction, claim included; COMMIT succeeded, and the message was acked without an
// effect.
func TestI8SwallowedDeadlockIsNotACommit(t *testing.T) {
	p := onMySQL(t, "")
	store := p.migrated(t)
	for name, run := range map[string]func(id string, fn func(context.Context, *sql.Tx) error) error{
		"alone": func(id string, fn func(context.Context, *sql.Tx) error) error {
			done, err := store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: id}, fn)
			if err == nil && !done {
				err = errors.New("duplicate")
			}
			return err
		},
		"group": func(id string, fn func(context.Context, *sql.Tx) error) error {
			claims := []inbox.Claim{{Consumer: "c", ID: id}, {Consumer: "c", ID: id + "2"}}
			return store.OnceGroup(t.Context(), claims, func(ctx context.Context, tx *sql.Tx, isNew []bool) error {
				if !isNew[0] || !isNew[1] {
					return errors.New("duplicate")
				}
				return fn(ctx, tx)
			})
		},
	} {
		err := run(name, func(ctx context.Context, tx *sql.Tx) error {
			deadlock(t, p, store, tx, name)
			return nil // swallowed
		})
		if v := new(classify.Classifier).Classify(err).Verdict; err == nil || v != classify.VerdictRetry {
			t.Errorf("%s: %v, verdict %v; want an error that is worth a retry", name, err, v)
		}
		if n, err := p.count(t.Context(), name); n != 0 || err != nil {
			t.Errorf("%s: counter %d, %v; want 0", name, n, err)
		}
		if err := run(name, func(ctx context.Context, tx *sql.Tx) error { return p.add(ctx, tx, name) }); err != nil {
			t.Errorf("%s: the next attempt: %v", name, err)
		}
		if n, err := p.count(t.Context(), name); n != 1 || err != nil {
			t.Errorf("%s: counter %d, %v after the next attempt; want 1", name, n, err)
		}
	}
}

// One handler of a group swallowed the deadlock. What its neighbours wrote after it was committed, each statement by itself, and once more when each
// ran alone.
func TestI4SwallowedDeadlockLeavesNothingOfTheNeighbours(t *testing.T) {
	p := onMySQL(t, "")
	store := p.migrated(t)
	store.DB().SetMaxOpenConns(2) // the deadlock's other side, and the group's
	claims := []inbox.Claim{{Consumer: "c", ID: "1"}, {Consumer: "c", ID: "2"}}
	run := func(fn func(context.Context, *sql.Tx) error) error {
		return store.OnceGroup(t.Context(), claims, func(ctx context.Context, tx *sql.Tx, _ []bool) error { return fn(ctx, tx) })
	}
	if err := run(func(ctx context.Context, tx *sql.Tx) error {
		deadlock(t, p, store, tx, "swallowed")
		return p.add(ctx, tx, "neighbour")
	}); err == nil {
		t.Error("the group has succeeded")
	}
	if n, err := p.count(t.Context(), "neighbour"); n != 0 || err != nil {
		t.Errorf("counter %d, %v; want 0: the group was rolled back", n, err)
	}
	if err := run(func(ctx context.Context, tx *sql.Tx) error { return p.add(ctx, tx, "neighbour") }); err != nil {
		t.Errorf("the next attempt: %v", err)
	}
	if n, err := p.count(t.Context(), "neighbour"); n != 1 || err != nil {
		t.Errorf("counter %d, %v after the next attempt; want 1", n, err)
	}
	for range 2 { // connections go back as they were
		conn, err := store.DB().Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var on bool
		if err := conn.QueryRowContext(t.Context(), "SELECT @@autocommit").Scan(&on); err != nil || !on {
			t.Errorf("autocommit of a connection of the pool: %t, %v; want true", on, err)
		}
	}
}

// deadlock adds one to counter in tx and then makes tx the victim of a deadlock.
func deadlock(t *testing.T, p place, store *sqlstore.Store, tx *sql.Tx, counter string) {
	ctx := t.Context()
	other, err := store.DB().BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 { // the one that changed more rows survives
		if err := p.add(ctx, other, fmt.Sprint(counter, "-other", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(p.add(ctx, other, counter+"-b"), p.add(ctx, tx, counter)); err != nil {
		t.Fatal(err)
	}
	survived := make(chan error, 1)
	go func() { survived <- p.add(ctx, other, counter) }()
	if err := p.add(ctx, tx, counter+"-b"); err == nil {
		t.Error("the handler's statement did not fail: no deadlock")
	}
	if err := errors.Join(<-survived, other.Rollback()); err != nil {
		t.Errorf("the other transaction: %v", err)
	}
}
