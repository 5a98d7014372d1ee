package main

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
)

// The contracts of the service.
type (
	TransferRequested struct {
		From  string `json:"from"`
		To    string `json:"to"`
		Cents int64  `json:"cents"`
	}
	TransferBooked struct {
		From  string `json:"from"`
		To    string `json:"to"`
		Cents int64  `json:"cents"`
	}
)

// Ledger is what the handlers need of a database, within one transaction.
type Ledger interface {
	// Add changes a balance.
	Add(ctx context.Context, account string, cents int64) error
	// Publish adds messages to the outbox.
	Publish(ctx context.Context, topic string, msgs ...*message.Message) error
}

// transfer moves the money once, however often it is asked to.
func transfer(ctx context.Context, ledger Ledger, t TransferRequested) error {
	if t.Cents <= 0 {
		return classify.Permanent(fmt.Errorf("transfer from %q to %q: cents is %d, want more than 0", t.From, t.To, t.Cents))
	}
	if err := ledger.Add(ctx, t.From, -t.Cents); err != nil {
		return err
	}
	if err := ledger.Add(ctx, t.To, t.Cents); err != nil {
		return err
	}
	booked, err := event.New(ctx, "transfer.booked", TransferBooked(t), event.WithKey(t.From))
	if err != nil {
		return err
	}
	return ledger.Publish(ctx, "bookings", booked)
}
