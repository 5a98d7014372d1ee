// Package outbox publishes events that were written in a business transaction. It owns the rows' form,
// the check of what goes in, and the relay that brings them to a broker in order per key; the tables
// are in stores/*.
package outbox

import (
	"context"
	"time"
)

// Buckets is the number of buckets that keys are spread over. It is frozen: writers and relays of all
// versions must agree on it.
const Buckets = 64

// Row is one message in the outbox. Rows are inserted and deleted, never updated.
type Row struct {
	// ID grows in order of insertion within a bucket and key. The database sets it.
	ID int64
	// Bucket is FNV-1a 64 of Key modulo Buckets.
	Bucket int
	// Topic is where the message goes, Key what it is ordered by.
	Topic, Key string
	// UUID is the Watermill message's id.
	UUID string
	// Metadata is stored as JSON.
	Metadata map[string]string
	// Payload is stored byte for byte; nil (a tombstone) stays nil.
	Payload []byte
	// CreatedAt is when it was added, AvailableAt when it may be published; the zero time: at once.
	CreatedAt, AvailableAt time.Time
}

// Writer inserts rows within a transaction of type Tx. The stores implement it; users call [Add].
type Writer[Tx any] interface {
	InsertOutbox(ctx context.Context, tx Tx, rows []Row) error
}
