package runtime

import (
	"sync/atomic"

	"github.com/headrace-go/headrace/internal/flight"
)

// Stats counts what became of a consumer's deliveries since Run began, each when it was settled.
type Stats struct {
	Deliveries   int64 // all of them: the sum of what follows but Retries
	Effects      int64 // a handler succeeded; with HandleTx, committed
	Duplicates   int64 // taken effect before; nothing was done
	Stale        int64 // a newer version of the entity had been applied; nothing was done
	Ignored      int64 // no handler for the type
	Dropped      int64 // the handler's error said Drop
	DeadLettered int64 // the dead letter is stored
	Parked       int64 // committed behind others of its key, which is parked; see ConsumerConfig.Park
	Delayed      int64 // to be delivered again later, as its error asked
	Released     int64 // given back without a verdict: shutdown, a lost partition, the end of a hold
	Nacked       int64 // left without an outcome, which the log tells of as an error; they are delivered again
	Retries      int64 // attempts beyond the first
}

// Stats returns the consumer's counts. Safe for concurrent use.
func (c *Consumer) Stats() Stats {
	n := func(r flight.Receipt) int64 { return c.counts.receipts[r].Load() }
	return Stats{
		Deliveries:   c.counts.deliveries.Load(),
		Effects:      n(flight.Handled) + n(flight.Committed),
		Duplicates:   n(flight.Duplicate),
		Stale:        n(flight.Stale),
		Ignored:      n(flight.Ignored),
		Dropped:      n(flight.Dropped),
		DeadLettered: n(flight.DeadLettered),
		Parked:       n(flight.Parked),
		Delayed:      c.counts.delayed.Load() + n(flight.Deferred),
		Released:     c.counts.released.Load(),
		Nacked:       c.counts.nacked.Load(),
		Retries:      c.counts.retries.Load(),
	}
}

// counts is the live form of Stats.
type counts struct {
	deliveries, delayed, released, nacked, retries atomic.Int64
	receipts                                       [flight.Deferred + 1]atomic.Int64
}

// settled counts a delivery by what it was settled with.
func (n *counts) settled(f *flight.Flight) {
	n.deliveries.Add(1)
	switch f.Settlement() {
	case flight.Acked:
		n.receipts[f.Receipt()].Add(1)
	case flight.Delayed:
		n.delayed.Add(1)
	case flight.Nacked:
		n.nacked.Add(1)
	default:
		n.released.Add(1)
	}
}
