package sqlstore

import (
	"context"
	"database/sql"
	"time"
)

// finishTimeout bounds a COMMIT or ROLLBACK. They do not end with the caller's context: a COMMIT cut
// off has an unknown outcome, and a ROLLBACK that cannot be sent costs the connection.
const finishTimeout = 15 * time.Second

// transaction is a *sql.Tx whose context ends only when we say so. database/sql rolls back at the
// moment that the context of BeginTx ends, while the handler still runs, and some drivers use that
// context for COMMIT and ROLLBACK.
type transaction struct {
	*sql.Tx
	cancel context.CancelFunc
	ended  bool
}

// begin waits for a connection and starts a transaction on it, until ctx ends.
func (s *Store) begin(ctx context.Context) (*transaction, error) {
	txCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	tx, err := s.db.BeginTx(txCtx, s.txOpts)
	if !stop() && err == nil { // ctx ended just now, and database/sql rolls back
		_ = tx.Rollback()
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	return &transaction{Tx: tx, cancel: cancel}, nil
}

func (t *transaction) commit() error { return t.end(t.Commit) }

// rollback ends the transaction unless that was done.
func (t *transaction) rollback() error { return t.end(t.Rollback) }

func (t *transaction) end(how func() error) error {
	if t.ended {
		return nil
	}
	t.ended = true
	defer t.cancel()
	defer time.AfterFunc(finishTimeout, t.cancel).Stop()
	return how()
}
