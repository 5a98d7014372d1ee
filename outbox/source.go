package outbox

import (
	"context"
	"time"
)

// Source is what a [Relay] needs of a database. The stores implement it; headracetest/outboxsuite holds
// the tests that an implementation must pass. It is safe for concurrent use.
//
// No method keeps a lock or a transaction open after it has returned, and none holds one while it waits
// for the caller's process: a relay that is frozen in any place must not stop another one.
type Source interface {
	// Lease makes owner known as a live relay for ttl, prolongs its leases that have not run out, and
	// takes free buckets (never leased, given back, or run out) until it has [Share] of them or none
	// is free. It returns the leases that owner then has. Times are by the database's clock.
	//
	// Taking a bucket raises its epoch. A lease that ran out is never prolonged, only taken again.
	Lease(ctx context.Context, owner string, ttl time.Duration) (Tenure, error)

	// Release gives back the leases that owner still has of those named.
	Release(ctx context.Context, owner string, leases []Lease) error

	// Leave gives back all leases of owner, which is not a live relay any more.
	Leave(ctx context.Context, owner string) error

	// Topics returns at most limit topics that have rows, in the order of their names as bytes,
	// beginning behind the one named after.
	Topics(ctx context.Context, after string, limit int) ([]Topic, error)

	// Fetch returns the first rows of a topic, in the order of their ids, without those of the keys
	// that a dead row blocks (see [Burial]). All of the answer is of one moment, after the call began:
	// if it has a row of a key, it has all those before it that were committed at that moment.
	Fetch(ctx context.Context, q Query) (Page, error)

	// Delete removes the rows of topic with the given ids whose bucket owner still has under one of the
	// given leases. It returns the leases that owner does not have any more. Ids without a row are not
	// an error.
	Delete(ctx context.Context, owner, topic string, leases []Lease, ids []int64) (lost []Lease, err error)

	// Bury moves one row to the dead rows, in one transaction, if owner still has the lease. It reports
	// whether it has. A row that is not there any more is not an error.
	Bury(ctx context.Context, owner string, lease Lease, b Burial) (held bool, err error)

	// Promote moves at most limit delayed rows whose time has come into the outbox, with new ids, in
	// order of that time, and returns how many. Rows that another call is moving are left to it.
	Promote(ctx context.Context, limit int) (int, error)

	// Backlog counts the rows, each kind up to limit.
	Backlog(ctx context.Context, limit int) (Backlog, error)
}

// Lease is the right to publish the rows of one bucket.
type Lease struct {
	Bucket int
	// Epoch counts how often the bucket was taken: it tells this lease from all others of the bucket.
	Epoch int64
}

// Tenure is what one relay has.
type Tenure struct {
	// Leases in the order of their buckets.
	Leases []Lease
	// Relays is the number of live relays, this one included.
	Relays int
	// Now is the database's clock when it answered. The zero time: it is not known.
	Now time.Time
}

// Share is the number of buckets that each of so many live relays may hold. All buckets are covered
// when each has its share.
func Share(relays int) int {
	if relays <= 1 {
		return Buckets
	}
	return (Buckets + relays - 1) / relays
}

// Topic is a topic with rows in the outbox.
type Topic struct {
	Name string
	// Age is the time since its row with the lowest id was added, by the database's clock.
	Age time.Duration
}

// Query asks for rows of one topic.
type Query struct {
	Topic string
	// Buckets that the rows must be in. None: no rows.
	Buckets []int
	// NotKeys are keys and NotIDs are ids whose rows are left out.
	NotKeys []string
	NotIDs  []int64
	// Rows and Bytes (of payload and metadata) bound the answer: it ends with the row that reaches either, whatever size
	// that row has.
	Rows, Bytes int
}

// Page is the answer to a [Query].
type Page struct {
	Rows []Row
	// More says that the answer was cut: there can be more rows behind the last one.
	More bool
}

// Burial tells why a row goes to the dead rows.
type Burial struct {
	Topic string
	ID    int64
	// ErrorType is the classifier's name of the error, Error its text. Both are bounded by the relay.
	ErrorType, Error string
	// Block holds the later rows of the same topic and key: Fetch leaves them out while the dead row is
	// there.
	Block bool
}

// Backlog is how much waits, each number at most the limit it was asked for with.
type Backlog struct {
	Rows    int // to be published
	Delayed int // whose time has not come
	Dead    int // given up
}
