package deadletter

import (
	"context"
	"time"
)

// Row is a letter as a database holds it: columns to search by, and the letter itself as a body. [Store] makes it.
type Row struct {
	// ID is the letter's id, at most 255 bytes of text, as every other text but Error and Search.
	ID string

	Consumer, Topic, Type, Subject, Key, MessageID, CorrelationID, ErrorType, Fingerprint, Batch string

	// Error is the error's text, or "" where it is not to be seen. Search is what [Filter.Text] looks into.
	Error, Search string

	Partition int32
	Offset    int64

	Deaths, Hops int

	// FailedAt is when the consumer gave up. Times have microseconds.
	FailedAt time.Time

	State    State
	Redacted bool

	// Sealed says that Document and Payload are encrypted.
	Sealed bool
	// Document is the record without its payload (poison.ParseDocument), of the version that it tells; nil: it was not asked
	// for. Payload is the message's, nil for a tombstone.
	Document, Payload []byte

	EditedFrom string

	// The database sets the rest.
	ClaimedBy            string
	ClaimedUntil         time.Time
	IndexedAt, ChangedAt time.Time
}

// Query asks for rows in the order of their failure.
type Query struct {
	Filter Filter
	// Newest begins with the last failure.
	Newest bool
	// After is the last row of the page before; nil: from the beginning.
	After *Row
	// Limit is the most rows to return, from 1 to [MaxLimit].
	Limit int
	// Bodies asks for Row.Document and Row.Payload.
	Bodies bool
}

// MaxLimit bounds a page of rows or ids.
const MaxLimit = 1000

// Change is a change of state of some letters, in one transaction with an entry in the trail of each.
type Change struct {
	// IDs are at most [MaxLimit]. Those that are not in a state that allows the change are left alone.
	IDs []string
	// From are the states that allow the change.
	From []State
	// To is the new state.
	To State
	// Entry is what is written into the trails; its LetterID and At are set by the table.
	Entry Entry
}

// Claim is the exclusive right to redrive.
type Claim struct {
	// Token tells the claim from others, Owner is shown to operators.
	Token, Owner string
	// TTL is when it ends by itself, from 1 ms.
	TTL time.Duration
}

// Table is the table of dead letters in a database, with its trail. It is safe for concurrent use, by any
// number of processes. The stores in stores/* implement it; users take [NewStore].
//
// "Claimed" is a row in state [Redriving] whose claim has not ended by the database's clock. Such a row is
// changed by nobody but the claim's owner.
type Table interface {
	// Insert adds the rows that are not there yet, each in a transaction, and returns how many that were.
	// See [Writer] for what happens to earlier letters of the message.
	Insert(ctx context.Context, rows ...Row) (int, error)

	// Select returns a page of rows.
	Select(ctx context.Context, q Query) ([]Row, error)

	// Count tells how many there are in each state.
	Count(ctx context.Context, f Filter) (map[State]int64, error)

	// Groups returns at most limit kinds of failure, the most frequent first.
	Groups(ctx context.Context, f Filter, limit int) ([]Group, error)

	// Trail returns the first limit entries of a letter; of no letter, "", the purges.
	Trail(ctx context.Context, id string, limit int) ([]Entry, error)

	// Claim claims those of change.IDs that are in a state of change.From, or whose claim has ended, and
	// returns them. change.To is [Redriving].
	Claim(ctx context.Context, c Claim, change Change) ([]string, error)

	// Settle ends the claim of those of change.IDs that c still holds, or held and nobody else took, and returns
	// them. They go to change.To; "" is the state of before.
	Settle(ctx context.Context, c Claim, change Change) ([]string, error)

	// Move changes the state of letters that are not claimed and returns which.
	Move(ctx context.Context, change Change) ([]string, error)

	// Replace adds row and moves the letter change.IDs[0] as Move does, in one transaction. It returns false, and does
	// nothing, if that cannot be moved.
	Replace(ctx context.Context, change Change, row Row) (bool, error)

	// Purge deletes those of ids that are not claimed, with their trails, and returns how many. One entry without
	// a letter stays.
	Purge(ctx context.Context, ids []string, e Entry) (int, error)
}

// Writer adds a dead letter within a transaction of type Tx. The stores implement it; users call [Index].
type Writer[Tx any] interface {
	// InsertDeadLetter adds row unless its id is there, and reports whether it did. Earlier letters of the
	// same consumer and message (fewer deaths, or failed before) that are new become resolved, with an entry; a letter
	// that comes after a later one of its message (more deaths, and failed later) is resolved at once.
	InsertDeadLetter(ctx context.Context, tx Tx, row Row) (bool, error)
}
