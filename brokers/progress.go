package brokers

import "time"

// Progresser is what a [Broker] also is if it knows how its consumers get on, partition by partition.
type Progresser interface {
	// Progress returns how the partitions of topic stand that consumer owns in this process, in their order. There are
	// none before it has got any. It does not wait for the message system, and is safe for concurrent use. The caller owns the
	// slice.
	Progress(consumer, topic string) []Progress
}

// Progress is how a consumer stands with one partition, stream or queue at one moment.
type Progress struct {
	// Topic is the one that is read, which can be one of several if a pattern was subscribed to; Partition is -1 where the
	// broker has none.
	Topic     string
	Partition int32

	// Lag is how many messages are not settled for good: what a restart would have before it. -1: not known.
	Lag int64

	// InFlight deliveries were handed over and are not settled. Returned ones were nacked or released and will come
	// again here, the next at NextReturn. Waiting ones were read and not handed over; they are of Blocked keys that wait for
	// deliveries before them, and of others that wait for the window.
	InFlight, Returned, Waiting, Blocked int

	// OldestSince is when the oldest message that is in flight or returned was first handed over; NextReturn when the next
	// returned one comes again. The zero time if there is none.
	OldestSince, NextReturn time.Time

	// Paused says that nothing more is read for now, since enough of it waits.
	Paused bool
}
