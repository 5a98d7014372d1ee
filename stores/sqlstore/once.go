package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/schema"
)

// Once implements [inbox.Store]. It blocks until one of the store's transactions is free.
//
// When ctx ends before fn has returned, the transaction is rolled back even if fn returns nil: a
// handler that gave up quietly must not count as done. The COMMIT itself does not end with ctx. When
// its outcome is unknown (the connection broke), Once returns an error, and the claim of the next
// attempt finds out.
//
// On MySQL a handler that swallows a deadlock and goes on writes outside of the transaction, which has ended: Once fails then, and the
// next attempt writes it again. Return the error of a statement.
//
// fn must not commit or roll back; Once reports [inbox.ErrTxEnded] when it did by tx.Commit or
// tx.Rollback. It cannot see a COMMIT that fn sent as text.
func (s *Store) Once(ctx context.Context, c inbox.Claim, fn func(ctx context.Context, tx *sql.Tx) error) (bool, error) {
	if err := c.Validate(); err != nil {
		return false, err
	}
	if err := s.slots.Take(ctx); err != nil {
		return false, failed(ctx, "begin", c, err)
	}
	defer s.slots.Give()

	tx, err := s.begin(ctx)
	if err != nil {
		return false, failed(ctx, "begin", c, err)
	}
	defer func() { _ = tx.rollback() }() // whatever was not committed, after a panic or Goexit of fn as well

	claimed, err := s.claim(ctx, tx.Tx, c)
	if err != nil {
		_ = tx.rollback() // now: the explanation needs the connection
		return false, failed(ctx, "claim", c, s.explain(ctx, err))
	}
	if !claimed {
		s.duplicates.Add(1)
		return false, nil
	}
	if err := fn(ctx, tx.Tx); err != nil {
		if errors.Is(tx.rollback(), sql.ErrTxDone) {
			return false, errors.Join(err, failed(ctx, "roll back", c, classify.Permanent(inbox.ErrTxEnded)))
		}
		// A rollback that failed otherwise has lost its connection, and the database rolls back.
		return false, err
	}
	if err := s.finish(ctx, tx, c); err != nil {
		return false, failed(ctx, "commit", c, err)
	}
	return true, nil
}

// errClaimGone is what an attempt fails with whose transaction the database had given up meanwhile.
var errClaimGone = errors.New("the claim is gone: the database rolled back while the handler went on, as MySQL does after a deadlock; return the error of a statement")

// finish commits, if ctx has not ended. MySQL rolls back a whole transaction after a deadlock. A handler that
// swallows that error goes on without one, and COMMIT succeeds, with nothing to commit or half of it. So there
// the claim is looked for first.
func (s *Store) finish(ctx context.Context, tx *transaction, c inbox.Claim) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := error(nil)
	if s.names.Dialect == schema.MySQL && c != (inbox.Claim{}) {
		var there int
		err = tx.QueryRowContext(ctx, s.sql.mine, c.Consumer, c.ID).Scan(&there)
		if errors.Is(err, sql.ErrNoRows) {
			return errClaimGone
		}
	}
	if err == nil {
		err = tx.commit()
	}
	if errors.Is(err, sql.ErrTxDone) {
		err = classify.Permanent(inbox.ErrTxEnded)
	}
	return err
}

func (s *Store) claim(ctx context.Context, tx *sql.Tx, c inbox.Claim) (bool, error) {
	args := []any{c.Consumer, c.ID}
	if s.names.Dialect == schema.SQLite {
		args = append(args, time.Now().UnixMicro())
	}
	result, err := tx.ExecContext(ctx, s.sql.claim, args...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

func failed(ctx context.Context, operation string, c inbox.Claim, err error) error {
	return fmt.Errorf("inbox: %s %q for %q: %w", operation, c.ID, c.Consumer, inbox.Outage(ctx, err))
}
