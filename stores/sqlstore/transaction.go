package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"time"

	"github.com/headrace-go/headrace/stores/schema"
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
	conn   *sql.Conn // without autocommit, of beginShared; else nil
}

// begin waits for a connection and starts a transaction on it, until ctx ends.
func (s *Store) begin(ctx context.Context) (*transaction, error) { return s.beginOn(ctx, s.db) }

// beginShared starts a transaction for several handlers. MySQL ends a transaction after a deadlock; when the handler that met it goes on
// nonetheless, so do the others, and what they write must not be committed each by itself before the store finds out.
func (s *Store) beginShared(ctx context.Context) (*transaction, error) {
	if s.names.Dialect != schema.MySQL {
		return s.begin(ctx)
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	_, err = conn.ExecContext(ctx, "SET autocommit = 0")
	if err == nil {
		var tx *transaction
		if tx, err = s.beginOn(ctx, conn); err == nil {
			tx.conn = conn
			return tx, nil
		}
	}
	giveBack(ctx, conn)
	return nil, err
}

// giveBack gives a connection back as it was, or not at all.
func giveBack(ctx context.Context, conn *sql.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	if _, err := conn.ExecContext(ctx, "SET autocommit = 1"); err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // which closes it
	}
	_ = conn.Close() // fails for one that is closed
}

func (s *Store) beginOn(ctx context.Context, on interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
},
) (*transaction, error) {
	txCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	tx, err := on.BeginTx(txCtx, s.txOpts)
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
	if t.conn != nil {
		defer giveBack(context.Background(), t.conn)
	}
	defer t.cancel()
	defer time.AfterFunc(finishTimeout, t.cancel).Stop()
	return how()
}
