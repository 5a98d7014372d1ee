package pgxstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/stores/internal/parksql"
)

var _ parking.Provider = (*Store)(nil)

// Parking implements [parking.Provider]. What is not part of a transaction of Once runs outside of the store's
// limit of transactions, on a connection of the pool.
func (s *Store) Parking() parking.Ledger {
	return parksql.New(s.names, parksql.Access{
		DB: pool{s.pool},
		Tx: func(ctx context.Context, f func(parksql.DB) error) error {
			return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error { return f(inTx{tx}) })
		},
		In: func(tx any) (parksql.DB, bool) {
			t, ok := tx.(pgx.Tx)
			return inTx{t}, ok
		},
		Explain: s.explain,
	})
}

// inTx is a parksql.DB of one transaction.
type inTx struct{ tx pgx.Tx }

func (t inTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (t inTx) Query(ctx context.Context, row func(scan func(...any) error) (bool, error), query string, args ...any) error {
	rows, err := t.tx.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	return eachRow(rows, row)
}

func eachRow(rows pgx.Rows, row func(scan func(...any) error) (bool, error)) error {
	defer rows.Close()
	for rows.Next() {
		if more, err := row(rows.Scan); err != nil {
			return err
		} else if !more {
			break
		}
	}
	rows.Close()
	return rows.Err()
}
