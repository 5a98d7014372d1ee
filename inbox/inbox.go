// Package inbox makes a message take effect once: the claim of its id, the handler's effect and the
// outgoing events are one database transaction. It owns the contract, the receipts that a transaction
// earns, the version guard, the transactions that many messages share, and the pruning of old claims; the databases
// are in stores/*.
//
// It refuses to dedup by anything but (consumer, id), and to promise more than the database's
// transaction holds: a mail that the handler sent is sent again when the transaction is rolled back.
package inbox

import (
	"context"
	"errors"
	"time"
)

// Claim names one message to one consumer. Both are never empty (invariant I10).
type Claim struct {
	// Consumer is the consumer's stable name: the scope of the id.
	Consumer string
	// ID identifies the message within the consumer. At most 255 bytes; event.Identify hashes longer ones.
	ID string
}

// Store runs effects in transactions of type Tx together with the claim of their message.
// It is safe for concurrent use.
type Store[Tx any] interface {
	Database

	// Once begins a transaction, claims c as its first statement, runs fn and commits. It blocks until
	// one of the store's transactions is free. A claim that cannot be kept is refused before that with a
	// permanent *[NameError].
	//
	// A concurrent claim of the same c waits for the first one's outcome. If c was committed before,
	// Once returns false and a nil error and does not call fn. It returns true only after the COMMIT
	// was confirmed as a COMMIT. An error or a panic of fn rolls everything back, the claim included;
	// fn's error is returned as it is or wrapped. Nothing is committed when ctx ended before fn returned.
	// Each call has a transaction of its own: call Once again to try again. fn neither commits nor
	// rolls back; see [ErrTxEnded]. An error of Once leaves open whether the COMMIT took place when the
	// connection broke meanwhile; the next attempt's claim finds out.
	//
	// The ctx that fn gets ends with ctx; fn puts its own time limit on it, so that the wait for a
	// connection and for the claim does not use up the handler's time.
	Once(ctx context.Context, c Claim, fn func(ctx context.Context, tx Tx) error) (bool, error)

	// Advance records in tx that consumer has seen version of entity, unless a newer one is recorded, and
	// reports whether it did: false means stale. It locks the entity's row until tx ends.
	// An entity that cannot be kept is refused with a permanent *[NameError]. Users call [SkipStale].
	Advance(ctx context.Context, tx Tx, consumer, entity string, version int64) (bool, error)
}

// Database is the part of a store that does not depend on its transaction type.
type Database interface {
	// Check reports whether the schema is there in a version this program can use. Its error names the
	// missing table or the versions, and what to do. It changes nothing.
	Check(ctx context.Context) error

	// Migrate brings the schema to this program's version, under a lock; concurrent calls are safe.
	Migrate(ctx context.Context) error

	// MaxConcurrency is how many transactions can be open at once (the pool's size); 0 is no limit.
	MaxConcurrency() int

	// Prune deletes at most limit claims that were made before the given time and returns how many.
	Prune(ctx context.Context, before time.Time, limit int) (int, error)
}

// ErrCommitRolledBack is returned when the database answered COMMIT with ROLLBACK: the transaction had
// been aborted, and nothing was stored.
var ErrCommitRolledBack = errors.New("commit was answered with rollback: the transaction was aborted")
