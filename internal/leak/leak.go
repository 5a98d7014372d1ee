// Package leak is goleak for packages that run Watermill's universal suite.
package leak

import (
	"testing"

	"go.uber.org/goleak"
)

// VerifyTestMain runs m and fails it if goroutines are left, but for those of Watermill's own test tool: its
// multiplier of subscribers hands messages on without a way to end, so a message that comes after a test has
// read as many as it wanted (a duplicate, which at-least-once allows) leaves its goroutines behind.
func VerifyTestMain(m *testing.M) {
	const multiplier = "github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe"
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction(multiplier+".func2"),
		goleak.IgnoreAnyFunction(multiplier+".func3"))
}
