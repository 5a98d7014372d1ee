package main

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/event"
)

// OrderCancelled is what this service consumes, RefundIssued what it publishes and consumes.
type (
	OrderCancelled struct {
		OrderID string `json:"order_id"`
		Cents   int64  `json:"cents"`
	}
	RefundIssued struct {
		OrderID string `json:"order_id"`
		Cents   int64  `json:"cents"`
	}
)

type billing struct{ broker *postgres.Broker }

// refund takes effect once: the row, the inbox's claim and the event that follows are one transaction.
func (b *billing) refund(ctx context.Context, tx pgx.Tx, e OrderCancelled) error {
	if _, err := tx.Exec(ctx, `INSERT INTO refunds (order_id, cents) VALUES ($1, $2)`, e.OrderID, e.Cents); err != nil {
		return err
	}
	issued, err := event.New(ctx, "refund.issued", RefundIssued(e), event.WithKey(e.OrderID))
	if err != nil {
		return err
	}
	return b.broker.PublisherTx(ctx, tx).Publish("refunds", issued)
}

// tellCustomer is at-least-once: the mail service gets the message's id as its idempotency key.
func tellCustomer(ctx context.Context, e RefundIssued) error {
	slog.InfoContext(ctx, "customer told", "order", e.OrderID, "cents", e.Cents, "idempotency_key", event.MessageID(ctx))
	return nil
}
