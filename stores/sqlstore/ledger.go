package sqlstore

import (
	"context"

	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/stores/internal/ledgersql"
	"github.com/headrace-go/headrace/stores/internal/outboxsql"
)

var _ ledger.Store = (*Ledger)(nil)

// Ledger is a store's crash ledger. It is safe for concurrent use.
type Ledger struct{ *ledgersql.Store }

// Ledger returns the store's crash ledger. Its transactions run outside of the store's limit, on at most two
// connections of the pool at once. On SQLite they queue with the handlers' transactions for the one
// connection, so let the ledger have a file of its own.
func (s *Store) Ledger() *Ledger {
	return &Ledger{ledgersql.New(s.names, func(ctx context.Context, f func(ledgersql.DB) error) error {
		return outboxTx(ctx, s.db, s.names.Dialect, func(tx outboxsql.DB) error { return f(tx) })
	}, s.Check)}
}
