package pgxstore_test

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// A function that knows only Watermill publishes within a pgx transaction.
func ExampleStore_InsertOutbox() {
	place := func(ctx context.Context, store *pgxstore.Store, publishPlaced func(message.Publisher) error) error {
		return pgx.BeginFunc(ctx, store.Pool(), func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO orders (id) VALUES ($1)", 7); err != nil {
				return err
			}
			return publishPlaced(outbox.NewPublisher(ctx, store, tx))
		})
	}
	_ = place
}

// One signal serves a process: with a relay it is part of the relay's configuration.
func ExampleStore_OutboxSignal() {
	relay := func(store *pgxstore.Store, pub message.Publisher) (*outbox.Relay, error) {
		signal := store.OutboxSignal(pgxstore.SignalConfig{})
		return outbox.NewRelay(store.Outbox(), pub, outbox.RelayConfig{Signal: signal})
	}
	// Without one it runs by itself, and is woken after a commit.
	writer := func(ctx context.Context, store *pgxstore.Store, commit func() error) error {
		signal := store.OutboxSignal(pgxstore.SignalConfig{})
		go func() { _ = signal.Run(ctx, nil) }()
		if err := commit(); err != nil {
			return err
		}
		signal.Wake()
		return nil
	}
	_, _ = relay, writer
}
