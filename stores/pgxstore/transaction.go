package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/outbox"
)

// finishTimeout bounds a COMMIT, with what goes with it, or a ROLLBACK. They do not end with the caller's context: a COMMIT cut
// off has an unknown outcome, and a ROLLBACK that cannot be sent costs the connection.
const finishTimeout = 15 * time.Second

// Rows of the outbox that wait for the COMMIT are bounded; more are sent as they come.
const (
	maxHeldRows  = 1000
	maxHeldBytes = 1 << 20
)

// transaction is an open transaction on its connection, as a handler gets it: a pgx.Tx that refuses to be
// committed or rolled back. Rows that outbox.Add puts into it wait here and go with the COMMIT, in one round
// trip.
type transaction struct {
	pgx.Tx
	store *Store
	conn  *pgxpool.Conn // nil: it was committed or rolled back

	ended bool // the handler called Commit or Rollback

	queued      []statement // of Queue: they wait as well, and go before the rows
	queuedBytes int
	direct      bool // both go to the server at once: a savepoint could take them back, or the rows were too many
	rows        []outbox.Row
	heldBytes   int
	lost        error // what waited was sent, and failed: a handler that goes on nonetheless must not commit
}

// Commit is refused: the store commits.
func (t *transaction) Commit(context.Context) error {
	t.ended = true
	return inbox.ErrTxEnded
}

// Rollback is refused: an error of the handler rolls back.
func (t *transaction) Rollback(context.Context) error {
	t.ended = true
	return inbox.ErrTxEnded
}

// Begin makes a savepoint. What was queued or added to the outbox before is sent first, for a rollback to the savepoint
// keeps it.
func (t *transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.sendHeld(ctx); err != nil {
		return nil, err
	}
	return t.Tx.Begin(ctx)
}

// hold keeps rows until the COMMIT. It is false where they have to be inserted now.
func (t *transaction) hold(ctx context.Context, rows []outbox.Row) (bool, error) {
	if t.direct || t.conn == nil {
		return false, nil
	}
	size := 0
	for i := range rows {
		size += len(rows[i].Payload)
	}
	if len(t.rows)+len(rows) > maxHeldRows || t.heldBytes+size > maxHeldBytes {
		return false, t.sendHeld(ctx)
	}
	held := len(t.rows)
	t.rows, t.heldBytes = append(t.rows, rows...), t.heldBytes+size
	for i := range t.rows[held:] {
		// The caller may use its buffer again. The metadata are outbox.Add's own.
		r := &t.rows[held+i]
		if r.Payload != nil {
			r.Payload = append(make([]byte, 0, len(r.Payload)), r.Payload...)
		}
	}
	return true, nil
}

// sendHeld sends what waits, and lets nothing wait from now on.
func (t *transaction) sendHeld(ctx context.Context) error {
	t.direct = true
	if err := t.sendQueued(ctx); err != nil || len(t.rows) == 0 {
		return err
	}
	rows := t.rows
	t.rows, t.heldBytes = nil, 0
	t.lost = t.store.insertRows(ctx, t.Tx, rows)
	return t.lost
}

// begin starts a transaction whose first statement is the claim, in one round trip. read reads the answer to
// it. After an error nothing is held.
func (s *Store) begin(ctx context.Context, read func(pgx.BatchResults) error, claim string, args ...any) (*transaction, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	var b pgx.Batch
	b.BeginTx(s.txOpts)
	b.Queue(claim, args...)
	results := conn.SendBatch(ctx, &b)
	t := &transaction{Tx: results.Tx(), store: s, conn: conn}
	if _, err = results.Exec(); err == nil {
		err = read(results)
	}
	// Close reports the first error again.
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		t.undo(ctx)
		return nil, err
	}
	return t, nil
}

// finish commits, if ctx has not ended. Postgres answers the COMMIT of an aborted transaction with ROLLBACK,
// and that of none, because the handler sent COMMIT or ROLLBACK as text, with a mere warning.
func (t *transaction) finish(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch status := t.conn.Conn().PgConn().TxStatus(); {
	case t.ended, status == 'I':
		return classify.Permanent(inbox.ErrTxEnded)
	case t.lost != nil:
		return t.lost
	case status == 'E':
		return inbox.ErrCommitRolledBack
	}
	ctx, stop := t.store.limit(ctx, t.conn)
	defer stop()
	if len(t.queued)+len(t.rows) > 0 {
		if err := t.commitWithHeld(ctx); err != nil {
			return err
		}
	} else if err := t.Tx.Commit(ctx); err != nil {
		if errors.Is(err, pgx.ErrTxCommitRollback) {
			err = inbox.ErrCommitRolledBack
		}
		return err
	}
	return nil
}

// commitWithHeld sends what waits and COMMIT in one flight. When a statement fails, Postgres skips what follows it.
func (t *transaction) commitWithHeld(ctx context.Context) error {
	b := t.batch()
	queued := b.Len()
	if err := t.store.insertRows(ctx, queue{b}, t.rows); err != nil {
		return err
	}
	inserts := b.Len() - queued
	commit := t.store.txOpts.CommitQuery
	if commit == "" {
		commit = "commit"
	}
	b.Queue(commit)
	results := t.conn.SendBatch(ctx, b)
	err := func() error {
		for range queued {
			if _, err := results.Exec(); err != nil {
				if t.conn.Conn().IsClosed() {
					return err // the COMMIT went with them: what has become of it is not known
				}
				return &queuedError{err}
			}
		}
		for range inserts {
			if _, err := results.Exec(); err != nil {
				return fmt.Errorf("insert %d rows into the outbox: %w", len(t.rows), err)
			}
		}
		tag, err := results.Exec()
		if err == nil && tag.String() == "ROLLBACK" {
			err = inbox.ErrCommitRolledBack
		}
		return err
	}()
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return err
}

// closedTx refuses everything with pgx.ErrTxClosed.
var closedTx = func() pgx.Tx {
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(&b, pgx.ErrTxClosed).Tx()
}()

// queue makes statements part of a batch.
type queue struct{ *pgx.Batch }

func (q queue) Exec(_ context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	q.Queue(sql, args...)
	return tag, nil
}

// undo rolls back what was not committed, and gives the connection back. An error of the ROLLBACK means that
// the connection is lost or closed, and then the server rolls back. The pool closes a connection that is still
// in a transaction.
func (t *transaction) undo(ctx context.Context) {
	if t.Tx != nil && t.conn.Conn().PgConn().TxStatus() != 'I' {
		ctx, stop := t.store.limit(ctx, t.conn)
		_ = t.Tx.Rollback(ctx)
		stop()
	}
	t.Tx = closedTx // the old one does not know of a COMMIT that went in a batch
	t.conn.Release()
	t.conn = nil
}

// limit bounds the statement that ends a transaction by finishTimeout, whatever becomes of ctx. Without a
// tracer, which needs the context, a deadline of the connection does it: that costs nothing.
func (s *Store) limit(ctx context.Context, conn *pgxpool.Conn) (context.Context, func()) {
	if s.traced {
		return context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	}
	c := conn.Conn().PgConn().Conn()
	_ = c.SetDeadline(time.Now().Add(finishTimeout)) // fails on a closed connection, as the statement then does
	return context.Background(), func() { _ = c.SetDeadline(time.Time{}) }
}
