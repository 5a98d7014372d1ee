package brokers

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrNoTopic says that a topic is not there.
var ErrNoTopic = errors.New("no such topic")

// Range is a part of a topic. The zero Range is all that the topic has.
type Range struct {
	// Partitions are those to read; nil: all. The partition of a broker that has none is -1.
	Partitions []int32

	// From is the first offset of a partition, To the one behind the last. A partition that is not named begins at its oldest message,
	// and ends at what is its end when the read begins.
	From, To map[int32]int64

	// Since leaves out what was stored before. A partition that From names begins there all the same.
	Since time.Time
}

// Reader is a [Broker] whose topics can be read by somebody who is no consumer of them: nothing is acked or committed, no consumer is told
// or held up, nothing is made that outlives the read. It is optional. Its methods are safe for concurrent use.
type Reader interface {
	// Read calls fn for each message of a range, as a subscription would deliver it (the delivery has no Release; acks mean
	// nothing), partitions among each other in any order, and returns nil at the end of the range. fn's error ends it and
	// is returned as it is. What is not there any more, since the broker keeps it no longer, is left out. The error wraps
	// ErrNoTopic if there is no such topic; it is not made.
	Read(ctx context.Context, topic string, r Range, fn func(*message.Message) error) error

	// Ends returns, for each partition, the offset of the message that would be stored next. It is where a later
	// read of what is new begins.
	Ends(ctx context.Context, topic string) (map[int32]int64, error)
}
