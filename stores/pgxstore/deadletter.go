package pgxstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/stores/internal/deadlettersql"
)

var (
	_ deadletter.Writer[pgx.Tx] = (*Store)(nil)
	_ deadletter.Table          = (*DeadLetters)(nil)
)

// DeadLetters is a store's table of dead letters. It is safe for concurrent use.
type DeadLetters struct{ *deadlettersql.Table }

// DeadLetters returns the store's dead letters, for deadletter.NewStore. Its statements run outside of the store's
// limit of transactions, on a connection of the pool each.
func (s *Store) DeadLetters() *DeadLetters {
	return &DeadLetters{deadlettersql.New(s.names, pool{s.pool}, func(ctx context.Context, f func(deadlettersql.DB) error) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return f(txRunner{tx}) })
	})}
}

// InsertDeadLetter implements [deadletter.Writer]. Users call deadletter.Index.
func (s *Store) InsertDeadLetter(ctx context.Context, tx pgx.Tx, row deadletter.Row) (bool, error) {
	return deadlettersql.New(s.names, nil, nil).InsertIn(ctx, txRunner{tx}, &row)
}

// txRunner is a deadlettersql.DB on a transaction.
type txRunner struct{ tx pgx.Tx }

func (r txRunner) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := r.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (r txRunner) Query(ctx context.Context, row func(scan func(...any) error) (bool, error), query string, args ...any) error {
	rows, err := r.tx.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	return readRows(rows, row)
}

// readRows calls row for each row until it returns false.
func readRows(rows pgx.Rows, row func(scan func(...any) error) (bool, error)) error {
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
