package sqlstore

import (
	"context"
	"database/sql"

	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/stores/internal/deadlettersql"
)

var (
	_ deadletter.Writer[*sql.Tx] = (*Store)(nil)
	_ deadletter.Table           = (*DeadLetters)(nil)
)

// DeadLetters is a store's table of dead letters. It is safe for concurrent use.
type DeadLetters struct{ *deadlettersql.Table }

// DeadLetters returns the store's dead letters, for deadletter.NewStore. Its statements run outside of the store's
// limit of transactions; on SQLite they queue for the one connection.
func (s *Store) DeadLetters() *DeadLetters {
	return &DeadLetters{deadlettersql.New(s.names, statementRunner{s.db}, func(ctx context.Context, f func(deadlettersql.DB) error) error {
		return outboxTx(ctx, s.db, s.names.Dialect, f)
	})}
}

// InsertDeadLetter implements [deadletter.Writer]. Users call deadletter.Index.
func (s *Store) InsertDeadLetter(ctx context.Context, tx *sql.Tx, row deadletter.Row) (bool, error) {
	return deadlettersql.New(s.names, nil, nil).InsertIn(ctx, statementRunner{tx}, &row)
}
