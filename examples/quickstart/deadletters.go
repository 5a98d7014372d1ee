package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

const (
	deadLettersTopic    = webhooksTopic + poison.Suffix
	deadLettersConsumer = "tracker.deadletters"
)

const deadLettersSchema = `
CREATE TABLE IF NOT EXISTS dead_letters (
	uuid TEXT NOT NULL, -- of the message that died
	payload BLOB, metadata TEXT NOT NULL,
	error_type TEXT NOT NULL, error TEXT NOT NULL
);`

// deadLetters writes the tracker's dead letters down. It reads a plain Watermill subscription, and the inbox is its
// only piece of Headrace: a second copy, which a crash between the dead letter and the ack leaves, is known by its
// id.
type deadLetters struct {
	broker brokers.Broker
	store  *sqlstore.Store
	logger *slog.Logger
}

// run works until ctx ends.
func (d *deadLetters) run(ctx context.Context) error {
	sub, err := d.broker.Subscriber(brokers.Subscription{Consumer: deadLettersConsumer, Topic: deadLettersTopic})
	if err != nil {
		return err
	}
	messages, err := sub.Subscribe(ctx, deadLettersTopic)
	switch {
	case ctx.Err() != nil: // stopped before it began
		return sub.Close()
	case err != nil:
		return errors.Join(fmt.Errorf("subscribe to %s: %w", deadLettersTopic, err), sub.Close())
	}
	record := inbox.Handler(d.store, deadLettersConsumer, recordDeadLetter)
	for msg := range messages {
		switch err := record(msg); {
		case err == nil:
			msg.Ack()
		case ctx.Err() != nil: // it comes again
		default:
			d.logger.ErrorContext(msg.Context(), "dead letter was not recorded", "uuid", msg.UUID, "error", err)
			msg.Nack()
		}
	}
	return sub.Close()
}

func recordDeadLetter(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
	dead, err := poison.Parse(msg)
	if err != nil {
		return err
	}
	metadata, err := json.Marshal(dead.Metadata)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO dead_letters (uuid, payload, metadata, error_type, error) VALUES (?, ?, ?, ?, ?)`,
		dead.UUID, dead.Payload, string(metadata), dead.ErrorType, dead.Error)
	return err
}
