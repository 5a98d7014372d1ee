package pgxstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/inbox"
)

// Once implements [inbox.Store]. It blocks until one of the store's transactions is free.
//
// When ctx ends before fn has returned, the transaction is rolled back even if fn returns nil: a
// handler that gave up quietly must not count as done. The COMMIT itself does not end with ctx. When
// its outcome is unknown (the connection broke), Once returns an error, and the claim of the next
// attempt finds out.
//
// The tx that fn gets refuses Commit and Rollback, and Once then reports [inbox.ErrTxEnded], unless fn
// returned an error anyway. tx.Begin gives a savepoint, as usual; take that for a savepoint, or tx.Exec, and not
// tx.Query or tx.Conn. What fn adds to the outbox through tx goes to the server with the COMMIT: fn cannot read
// it, and an error of it fails Once. [Queue] has other statements go with it.
func (s *Store) Once(ctx context.Context, c inbox.Claim, fn func(ctx context.Context, tx pgx.Tx) error) (bool, error) {
	if err := c.Validate(); err != nil {
		return false, err
	}
	if err := s.slots.Take(ctx); err != nil {
		return false, failed(ctx, "begin", c, err)
	}
	defer s.slots.Give()

	var claimed bool
	t, err := s.begin(ctx, func(results pgx.BatchResults) error {
		tag, err := results.Exec()
		claimed = tag.RowsAffected() == 1
		return err
	}, s.sql.claim, c.Consumer, c.ID)
	if err != nil {
		return false, failed(ctx, "claim", c, s.explain(ctx, err))
	}
	defer t.undo(ctx) // whatever was not committed, after a panic or Goexit of fn as well
	if !claimed {
		s.duplicates.Add(1)
		return false, nil
	}
	if err := fn(ctx, t); err != nil {
		return false, err
	}
	if err := t.finish(ctx); err != nil {
		if own, ok := errors.AsType[*queuedError](err); ok { // the handler's, as if it had waited for it
			return false, own
		}
		return false, failed(ctx, "commit", c, err)
	}
	return true, nil
}

func failed(ctx context.Context, operation string, c inbox.Claim, err error) error {
	return fmt.Errorf("inbox: %s %q for %q: %w", operation, c.ID, c.Consumer, inbox.Outage(ctx, err))
}

// OnceGroup implements [inbox.GroupStore]: one statement claims all. Where some are new and others are not, one more
// tells which.
func (s *Store) OnceGroup(ctx context.Context, claims []inbox.Claim, fn func(ctx context.Context, tx pgx.Tx, isNew []bool) error) error {
	if err := s.slots.Take(ctx); err != nil {
		return groupFailed(ctx, "begin", claims, err)
	}
	defer s.slots.Give()

	consumers, ids, isNew := make([]string, len(claims)), make([]string, len(claims)), make([]bool, len(claims))
	for i, c := range claims {
		consumers[i], ids[i] = c.Consumer, c.ID
	}
	var claimed int64
	t, err := s.begin(ctx, func(results pgx.BatchResults) error {
		tag, err := results.Exec()
		claimed = tag.RowsAffected()
		return err
	}, s.sql.claimMany, consumers, ids)
	if err != nil {
		return groupFailed(ctx, "claim", claims, s.explain(ctx, err))
	}
	defer t.undo(ctx)
	switch claimed {
	case int64(len(claims)):
		for i := range isNew {
			isNew[i] = true
		}
	case 0:
	default: // few groups have both: which is asked only here
		if err := t.readClaimed(ctx, claims, consumers, ids, isNew); err != nil {
			return groupFailed(ctx, "claim", claims, err)
		}
	}
	s.duplicates.Add(int64(len(claims)) - claimed)
	if err := fn(ctx, t, isNew); err != nil {
		return err
	}
	if err := t.finish(ctx); err != nil {
		return groupFailed(ctx, "commit", claims, err)
	}
	return nil
}

// readClaimed sets isNew of the claims that the transaction has inserted. Both they and the rows are sorted.
func (t *transaction) readClaimed(ctx context.Context, claims []inbox.Claim, consumers, ids []string, isNew []bool) error {
	rows, err := t.Tx.Query(ctx, t.store.sql.claimed, consumers, ids)
	if err != nil {
		return err
	}
	defer rows.Close()
	for i := 0; rows.Next(); i++ {
		row := rows.RawValues() // text is its own binary form
		for i < len(claims) && (claims[i].Consumer != string(row[0]) || claims[i].ID != string(row[1])) {
			i++
		}
		if i == len(claims) {
			return fmt.Errorf("the database answered with a claim out of order: %q of %q", row[1], row[0])
		}
		isNew[i] = true
	}
	return rows.Err()
}

func groupFailed(ctx context.Context, operation string, claims []inbox.Claim, err error) error {
	return fmt.Errorf("inbox: %s a group of %d for %q: %w", operation, len(claims), claims[0].Consumer, inbox.Outage(ctx, err))
}

// explain adds to the error of a statement what is wrong with the schema, if that is the cause.
func (s *Store) explain(ctx context.Context, err error) error {
	if state, ok := errors.AsType[sqlState](err); !ok || state.SQLState() != undefinedTable || ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	if cause := s.Check(ctx); notUsable(cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
