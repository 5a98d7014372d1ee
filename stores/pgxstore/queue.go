package pgxstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// maxQueued is how many statements wait at most; then they are sent.
const maxQueued = 1000

// Queue executes a statement of a handler that does not need its result. In a transaction of Once or of a group it waits, and goes to the
// server in the flight of the COMMIT, or ahead of whatever else is sent of the transaction: a handler of one such statement takes two round
// trips instead of three, and all handlers of an [inbox.Grouped] together two as well. Order is kept: among the statements of Queue and
// those of tx, for all handlers of the transaction, and the rows of outbox.Add come last.
//
// What the statement fails with is an error of the handler, which Once returns; or that of what is sent next. How many rows it changed is
// not told. sql is one statement; args are kept until it is sent, and may not be changed.
//
// In any other transaction, and once the handler has made a savepoint, Queue is tx.Exec. What goes past tx, by tx.Conn or tx.LargeObjects, goes
// past what waits as well.
func Queue(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	if t, ok := tx.(*transaction); ok && !t.direct && t.conn != nil {
		t.queued = append(t.queued, statement{sql, args})
		if len(t.queued) < maxQueued {
			return nil
		}
		return t.sendQueued(ctx)
	}
	_, err := tx.Exec(ctx, sql, args...)
	return err
}

// statement is one that waits.
type statement struct {
	sql  string
	args []any
}

// queuedError is what a statement of the handler has failed with in the flight of the COMMIT.
type queuedError struct{ err error }

func (e *queuedError) Error() string { return fmt.Sprintf("a queued statement: %v", e.err) }
func (e *queuedError) Unwrap() error { return e.err }

// batch takes what waits, in its order.
func (t *transaction) batch() *pgx.Batch {
	var b pgx.Batch
	for _, s := range t.queued {
		b.Queue(s.sql, s.args...)
	}
	t.queued = nil
	return &b
}

// sendQueued executes what waits, in one flight. After an error the transaction is aborted.
func (t *transaction) sendQueued(ctx context.Context) error {
	if len(t.queued) == 0 {
		return nil
	}
	if err := t.Tx.SendBatch(ctx, t.batch()).Close(); err != nil {
		return &queuedError{err}
	}
	return nil
}

// Query is that of the transaction, as all of these are, behind what waits.
func (t *transaction) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.sendQueued(ctx); err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).Query()
	}
	return t.Tx.Query(ctx, sql, args...)
}

func (t *transaction) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.sendQueued(ctx); err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).QueryRow()
	}
	return t.Tx.QueryRow(ctx, sql, args...)
}

func (t *transaction) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.sendQueued(ctx); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return t.Tx.SendBatch(ctx, b)
}

func (t *transaction) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.sendQueued(ctx); err != nil {
		return 0, err
	}
	return t.Tx.CopyFrom(ctx, table, columns, rows)
}

// Exec looks for a savepoint that is made as text.
func (t *transaction) Exec(ctx context.Context, sql string, arguments ...any) (tag pgconn.CommandTag, err error) {
	if isSavepoint(sql) {
		err = t.sendHeld(ctx)
	} else {
		err = t.sendQueued(ctx)
	}
	if err != nil {
		return tag, err
	}
	return t.Tx.Exec(ctx, sql, arguments...)
}
