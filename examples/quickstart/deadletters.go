package main

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/headrace-go/headrace/poison"
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

// recordDeadLetter writes a dead letter of the tracker down, with the original's bytes. A second copy, which a
// crash between the dead letter and the ack leaves, is known by its id.
func recordDeadLetter(ctx context.Context, tx *sql.Tx, dead poison.Record) error {
	metadata, err := json.Marshal(dead.Metadata)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO dead_letters (uuid, payload, metadata, error_type, error) VALUES (?, ?, ?, ?, ?)`,
		dead.UUID, dead.Payload, string(metadata), dead.ErrorType, dead.Error)
	return err
}
