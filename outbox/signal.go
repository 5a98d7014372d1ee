package outbox

import (
	"context"
	"time"
)

// Signal carries the hint "rows were committed" from process to process, beside the database's
// transactions: a NOTIFY within them would serialise their commits. It is a hint and no more: when it is
// lost, or the Signal fails altogether, rows are found by the poll, after PollMax at the latest.
//
// One Signal serves a whole process. It is safe for concurrent use.
type Signal interface {
	// Wake tells the other processes that rows were committed. It never blocks, and many calls within
	// a few milliseconds cost no more than one.
	Wake()

	// Run carries hints until ctx ends and then returns nil. It calls heard, which must not block, for the
	// hints of other processes; nil: they are not listened to, for a process that has no relay. An outage of
	// the database is not an error.
	Run(ctx context.Context, heard func()) error
}

// Published is one call of Publish, see RelayConfig.Observe.
type Published struct {
	Topic string
	// Rows were given to the call. Took is how long it lasted, Err what it returned.
	Rows int
	Took time.Duration
	Err  error
	// Age is how long ago, by the database's clock, the oldest of the rows was added: the latency of the
	// outbox once the call has returned nil. Before the first lease it is 0.
	Age time.Duration
}
