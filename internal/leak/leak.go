// Package leak is goleak for packages that run Watermill's universal suite.
package leak

import (
	"testing"

	"go.uber.org/goleak"
)

// VerifyTestMain runs m and fails it if goroutines are left, but for two that others leave.
//
// The multiplier of subscribers in Watermill's test tool hands messages on without a way to end, so a message that comes after
// a test has read as many as it wanted (a duplicate, which at-least-once allows) leaves its goroutines behind.
//
// A publisher of nats.go that is closed right after its first message has gone forgets a channel which its goroutine is about to read: that
// waits for ever.
func VerifyTestMain(m *testing.M) {
	const (
		multiplier    = "github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe"
		natsPublisher = "github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"
	)
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction(multiplier+".func2"),
		goleak.IgnoreAnyFunction(multiplier+".func3"),
		goleak.IgnoreTopFunction(natsPublisher))
}
