package sqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/internal/outboxsql"
	"github.com/headrace-go/headrace/stores/schema"
)

var (
	_ outbox.Writer[*sql.Tx] = (*Store)(nil)
	_ outbox.Delayer         = (*Outbox)(nil)
	_ outbox.Graveyard       = (*Outbox)(nil)
)

// Outbox is a store's outbox as a relay sees it: an [outbox.Source], an [outbox.Delayer] and an [outbox.Graveyard]. It is safe
// for concurrent use.
type Outbox struct{ *outboxsql.Source }

// Outbox returns the store's outbox, for [outbox.NewRelay]. Its statements run outside of the store's
// limit of transactions, on a connection of the pool each; on SQLite they queue for the one connection.
func (s *Store) Outbox() *Outbox { return &Outbox{s.outbox} }

func (s *Store) outboxSource() *outboxsql.Source {
	return outboxsql.New(s.names, statementRunner{s.db}, func(ctx context.Context, f func(outboxsql.DB) error) error {
		return outboxTx(ctx, s.db, s.names.Dialect, f)
	})
}

// InsertOutbox implements [outbox.Writer]. Users call outbox.Add.
func (s *Store) InsertOutbox(ctx context.Context, tx *sql.Tx, rows []outbox.Row) error {
	return s.outbox.Insert(ctx, func(ctx context.Context, query string, args ...any) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	}, rows)
}

func outboxTx(ctx context.Context, db *sql.DB, dialect schema.Dialect, f func(outboxsql.DB) error) error {
	var opts *sql.TxOptions
	if dialect == schema.MySQL {
		// Repeatable read would lock gaps, and so hold up those who insert.
		opts = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	tx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return err
	}
	if err := f(statementRunner{tx}); err != nil {
		if rerr := tx.Rollback(); rerr != nil && !errors.Is(rerr, sql.ErrTxDone) {
			err = errors.Join(err, rerr)
		}
		return err
	}
	return tx.Commit()
}

// statementRunner is an outboxsql.DB.
type statementRunner struct {
	db interface {
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	}
}

func (r statementRunner) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := r.db.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (r statementRunner) Query(ctx context.Context, row func(scan func(...any) error) (bool, error), query string, args ...any) (err error) {
	rows, err := r.db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := rows.Close(); err == nil {
			err = cerr
		}
	}()
	for rows.Next() {
		if more, err := row(rows.Scan); err != nil || !more {
			return err
		}
	}
	return rows.Err()
}
