package main

import (
	"context"
	"database/sql"
	"log/slog"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/sqlite"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

// OrderPlaced and OrderCancelled are the contracts that this service consumes, RefundIssued the one that it
// publishes. Fields that it does not need are left out: unknown ones are tolerated.
type (
	OrderPlaced struct {
		OrderID string `json:"order_id"`
		Items   int    `json:"items"`
	}
	OrderCancelled struct {
		OrderID string `json:"order_id"`
		Cents   int64  `json:"cents"`
	}
	RefundIssued struct {
		OrderID string `json:"order_id"`
		Cents   int64  `json:"cents"`
	}
)

type billing struct{ store *sqlstore.Store }

// notifyWarehouse is at-least-once: the warehouse gets the message's id as its idempotency key.
func (*billing) notifyWarehouse(ctx context.Context, e OrderPlaced) error {
	slog.InfoContext(ctx, "warehouse told", "order", e.OrderID, "items", e.Items, "idempotency_key", event.MessageID(ctx))
	return nil
}

// refund takes effect once: the row, the inbox's claim and the event that follows commit together.
func (b *billing) refund(ctx context.Context, tx *sql.Tx, e OrderCancelled) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO refunds (order_id, cents) VALUES (?, ?)`, e.OrderID, e.Cents); err != nil {
		return err
	}
	issued, err := event.New(ctx, "refund.issued", RefundIssued(e), event.WithKey(e.OrderID))
	if err != nil {
		return err
	}
	slog.InfoContext(ctx, "refund booked", "order", e.OrderID, "cents", e.Cents)
	return outbox.Add(ctx, b.store, tx, "refunds", issued)
}

// openStore opens the SQLite file at path, by default billing.db in the working directory, with the
// tables of Headrace and of this service.
func openStore(ctx context.Context, path string) (*sqlstore.Store, error) {
	if path == "" {
		path = "billing.db"
	}
	store, err := sqlite.Open(path)
	if err != nil {
		return nil, err
	}
	if err := store.Migrate(ctx); err != nil {
		return nil, closing(store, err)
	}
	if _, err := store.DB().ExecContext(ctx, `CREATE TABLE IF NOT EXISTS refunds (order_id TEXT PRIMARY KEY, cents INTEGER NOT NULL)`); err != nil {
		return nil, closing(store, err)
	}
	return store, nil
}
