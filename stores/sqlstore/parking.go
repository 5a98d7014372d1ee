package sqlstore

import (
	"context"
	"database/sql"

	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/stores/internal/outboxsql"
	"github.com/headrace-go/headrace/stores/internal/parksql"
)

var _ parking.Provider = (*Store)(nil)

// Parking implements [parking.Provider]. What is not part of a transaction of Once runs outside of the store's
// limit of transactions, on a connection of the pool; on SQLite it queues for the one connection.
func (s *Store) Parking() parking.Ledger {
	return parksql.New(s.names, parksql.Access{
		DB: statementRunner{s.db},
		Tx: func(ctx context.Context, f func(parksql.DB) error) error {
			return outboxTx(ctx, s.db, s.names.Dialect, func(db outboxsql.DB) error { return f(db) })
		},
		In: func(tx any) (parksql.DB, bool) {
			t, ok := tx.(*sql.Tx)
			return statementRunner{t}, ok
		},
		Explain: s.explain,
	})
}
