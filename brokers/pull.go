package brokers

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Puller is what a [message.Subscriber] also is if its messages can be taken by calls. A channel costs a change of goroutines for each
// message; with calls, the goroutine that has settled one message takes the next.
type Puller interface {
	message.Subscriber

	// Pull is Subscribe but for the way in which messages are taken. The subscription ends as that of Subscribe does.
	Pull(ctx context.Context, topic string) (Pull, error)
}

// Pull is one subscription that a [Puller] has opened. It is safe for concurrent use; of concurrent calls of Next nobody knows the
// order of what they return, so that a caller who keeps an order makes one call at a time.
type Pull interface {
	// Next returns the next message, or nil if there is none now or the subscription has ended. It does not block. Whoever
	// settles the message calls its Delivery.Settled, or Delivery.Release: nothing else tells the adapter.
	Next() *message.Message

	// Ready has a value when there may be a message after there was none, and is closed when the subscription has ended, as
	// the channel of Subscribe is. What a call of Delivery.Settled has made room for is not told: whoever makes that
	// call takes the next message after it.
	Ready() <-chan struct{}
}
