package pgxstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/stores/internal/ledgersql"
)

var _ ledger.Store = (*Ledger)(nil)

// Ledger is a store's crash ledger. It is safe for concurrent use.
type Ledger struct{ *ledgersql.Store }

// Ledger returns the store's crash ledger. Its transactions run outside of the store's limit, on at most two
// connections of the pool at once.
func (s *Store) Ledger() *Ledger {
	return &Ledger{ledgersql.New(s.names, s.ledgerTx, s.Check)}
}

func (s *Store) ledgerTx(ctx context.Context, f func(ledgersql.DB) error) error {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	if err := f(ledgerRunner{tx}); err != nil {
		if rerr := tx.Rollback(ctx); rerr != nil && !errors.Is(rerr, pgx.ErrTxClosed) {
			err = errors.Join(err, rerr)
		}
		return err
	}
	err = tx.Commit(ctx)
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		err = inbox.ErrCommitRolledBack
	}
	return err
}

// ledgerRunner is a ledgersql.DB.
type ledgerRunner struct{ tx pgx.Tx }

func (r ledgerRunner) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := r.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (r ledgerRunner) Query(ctx context.Context, row func(scan func(...any) error) (bool, error), query string, args ...any) error {
	rows, err := r.tx.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		more, err := row(rows.Scan)
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	rows.Close()
	return rows.Err()
}
