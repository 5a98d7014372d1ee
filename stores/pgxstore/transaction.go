package pgxstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/inbox"
)

// finishTimeout bounds a COMMIT or ROLLBACK. They do not end with the caller's context: a COMMIT cut
// off has an unknown outcome, and a ROLLBACK that cannot be sent costs the connection.
const finishTimeout = 15 * time.Second

// transaction is an open transaction and its connection, until it was committed or rolled back.
type transaction struct {
	conn *pgxpool.Conn
	tx   pgx.Tx
}

// begin starts a transaction and claims c in one round trip. After an error nothing is held.
func (s *Store) begin(ctx context.Context, c inbox.Claim) (t *transaction, claimed bool, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, false, err
	}
	var b pgx.Batch
	b.BeginTx(s.txOpts)
	b.Queue(s.sql.claim, c.Consumer, c.ID)
	results := conn.SendBatch(ctx, &b)
	t = &transaction{conn: conn, tx: results.Tx()}
	_, err = results.Exec()
	if err == nil {
		tag, claimErr := results.Exec()
		claimed, err = tag.RowsAffected() == 1, claimErr
	}
	// Close reports the first error again.
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		t.rollback(ctx)
		return nil, false, err
	}
	return t, claimed, nil
}

// commit ends the transaction. Postgres answers the COMMIT of an aborted transaction with ROLLBACK, and
// that of none, because the handler sent COMMIT or ROLLBACK as text, with a mere warning.
func (t *transaction) commit(ctx context.Context) error {
	if t.conn.Conn().PgConn().TxStatus() == 'I' {
		return classify.Permanent(inbox.ErrTxEnded)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	err := t.tx.Commit(ctx)
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		err = inbox.ErrCommitRolledBack
	}
	t.release()
	return err
}

// rollback ends the transaction unless that was done. An error of it means that the connection is lost
// or closed, and then the server rolls back.
func (t *transaction) rollback(ctx context.Context) {
	if t.conn == nil {
		return
	}
	if t.tx != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
		defer cancel()
		_ = t.tx.Rollback(ctx)
	}
	t.release()
}

// release gives the connection back. The pool closes one that is still in a transaction.
func (t *transaction) release() {
	t.conn.Release()
	t.conn = nil
}
