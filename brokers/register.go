package brokers

import "context"

// Registrar is what a [Broker] also is if a message goes to the consumers that are known when it is published, and to
// no later one.
type Registrar interface {
	// Register makes consumers known to topic; those that are known already stay as they are. The first of a
	// topic, all those of one call, also get what was published before. The runtime calls it once for each
	// topic, with all its consumers, before any of them subscribes.
	Register(ctx context.Context, topic string, consumers ...string) error
}
