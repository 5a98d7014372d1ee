package pgxstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/classify"
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
// returned an error anyway. tx.Begin gives a savepoint, as usual.
func (s *Store) Once(ctx context.Context, c inbox.Claim, fn func(ctx context.Context, tx pgx.Tx) error) (bool, error) {
	if err := c.Validate(); err != nil {
		return false, err
	}
	if err := s.slots.Take(ctx); err != nil {
		return false, failed("begin", c, err)
	}
	defer s.slots.Give()

	t, claimed, err := s.begin(ctx, c)
	if err != nil {
		return false, failed("claim", c, s.explain(ctx, err))
	}
	defer t.rollback(ctx) // whatever was not committed, after a panic or Goexit of fn as well
	if !claimed {
		return false, nil
	}
	handed := &handed{Tx: t.tx}
	if err := fn(ctx, handed); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, failed("commit", c, err)
	}
	if handed.ended {
		return false, failed("commit", c, classify.Permanent(inbox.ErrTxEnded))
	}
	if err := t.commit(ctx); err != nil {
		return false, failed("commit", c, err)
	}
	return true, nil
}

func failed(operation string, c inbox.Claim, err error) error {
	return fmt.Errorf("inbox: %s %q for %q: %w", operation, c.ID, c.Consumer, err)
}

// handed is the transaction as a handler gets it.
type handed struct {
	pgx.Tx
	ended bool
}

func (h *handed) Commit(context.Context) error {
	h.ended = true
	return inbox.ErrTxEnded
}

func (h *handed) Rollback(context.Context) error {
	h.ended = true
	return inbox.ErrTxEnded
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
