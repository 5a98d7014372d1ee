package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Delayer is a [Source] that also takes messages by themselves. Those of stores/* are Delayers.
type Delayer interface {
	Source

	// InsertDelayed commits row, not to be published before d has passed by the database's clock. Users call [Delay].
	InsertDelayed(ctx context.Context, row Row, d time.Duration) error
}

// Delay commits msg by itself to the outbox whose relay then publishes it to topic, not before d has passed by the
// database's clock. As with [AddAt] it keeps no order with any other message. It is for what has no transaction to go
// with: a message that is to be handled again later, say. The message is stored as it is, without ids and trace of ctx,
// and is not changed.
//
// An error that wraps [ErrInvalid] names what of the message the outbox cannot hold. Any other error leaves open whether it
// was stored.
func Delay(ctx context.Context, to Delayer, d time.Duration, topic string, msg *message.Message) error {
	if d < 0 {
		return fmt.Errorf("%w: delay %v: want 0 or more", ErrInvalid, d)
	}
	if err := checkName("topic", topic, MaxTopicBytes); err != nil {
		return err
	}
	row, err := rowOf(context.Background(), topic, time.Time{}, msg)
	if err != nil {
		return fmt.Errorf("message for topic %q: %w", topic, err)
	}
	if err := to.InsertDelayed(ctx, row, d); err != nil {
		return fmt.Errorf("outbox: add a message for topic %q in %v: %w", topic, d, err)
	}
	return nil
}
