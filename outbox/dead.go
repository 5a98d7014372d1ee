package outbox

import (
	"context"
	"time"
)

// Graveyard is where the rows are that were given up. The stores' sources implement it. It is safe for
// concurrent use.
type Graveyard interface {
	// Dead returns at most limit dead rows in the order of their ids, beginning behind the id after.
	Dead(ctx context.Context, after int64, limit int) ([]DeadRow, error)

	// DeadTopics counts the dead rows by topic, in the order of the topics' names as bytes, at most limit topics.
	DeadTopics(ctx context.Context, limit int) ([]DeadTopic, error)

	// Revive puts a dead row back into the outbox in one transaction and reports whether there was one.
	// One that blocks its key has its old id: the rows that it blocked stay behind it. Another one has a new
	// id, for its key has gone on without it.
	Revive(ctx context.Context, id int64) (bool, error)

	// Discard deletes a dead row for good and reports whether there was one. Rows that it blocked go on.
	Discard(ctx context.Context, id int64) (bool, error)
}

// DeadTopic is how many dead rows a topic has.
type DeadTopic struct {
	Name string
	Rows int
	// Blocking rows hold the later rows of their keys.
	Blocking int
}

// DeadRow is a row that was given up, and why.
type DeadRow struct {
	Row
	// DiedAt is when it was given up, by the database's clock.
	DiedAt time.Time
	// ErrorType and Error are those of its [Burial].
	ErrorType, Error string
	// Blocks tells that the later rows of its topic and key wait for it.
	Blocks bool
}
