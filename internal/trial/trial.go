// Package trial is how the test kit of applications (headracetest) reaches into a runtime that their own wiring made:
// by the broker that it gives them.
package trial

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/outbox"
)

// Broker is what the kit's broker also is.
type Broker interface {
	// AroundAttempts returns a stage that is run in each attempt, outside of the application's own middleware.
	AroundAttempts() message.HandlerMiddleware

	// Relays tells of an outbox that the runtime publishes from.
	Relays(outbox.Source)
}
