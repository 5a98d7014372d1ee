// Package outbox publishes events that were written in a business transaction. It owns the rows' form,
// the check of what goes in ([Add]), and the relay that brings them to a broker in order per key
// ([Relay]); the tables are in stores/*.
//
// It promises: a row that was committed is published at least once, with the same id, metadata and
// payload each time; rows of one topic and key are first published in the order of their ids; and a row
// leaves the table only after the publisher confirmed it, or with its reason into the table of dead
// rows. It refuses to promise "exactly once": a relay that dies between the confirmation and the delete
// publishes the row again, and the consumer's inbox removes the copy.
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
	// ID grows in order of insertion within a topic and key. The database sets it.
	ID int64
	// Bucket is [BucketOf] Key, or of UUID when there is no key.
	Bucket int
	// Topic is where the message goes. Key is what it is ordered by within the topic; empty: nothing.
	Topic, Key string
	// UUID is the Watermill message's id.
	UUID string
	// Metadata is stored as JSON, see [EncodeMetadata].
	Metadata map[string]string
	// Payload is stored byte for byte; nil (a tombstone) stays nil.
	Payload []byte
	// CreatedAt is when it was added, by the database's clock; of a row that [Source.Promote] has moved, when it was due.
	// AvailableAt is when it may be published; the zero time: at once.
	CreatedAt, AvailableAt time.Time
}

// Writer inserts rows within a transaction of type Tx. The stores implement it; users call [Add].
type Writer[Tx any] interface {
	// InsertOutbox inserts the rows with ids that grow in their order. ID and CreatedAt are left to the
	// database. It does not change the rows and keeps nothing of them after it returns.
	//
	// A row with an AvailableAt waits in a table of its own until [Source.Promote] finds it due.
	InsertOutbox(ctx context.Context, tx Tx, rows []Row) error
}
