//go:build !race

package middleware_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
)

// Not under the race detector, which makes sync.Pool forget at random.
func TestFirstSuccessDoesNotAllocate(t *testing.T) {
	msg := newMessage(t.Context(), "1")
	for i := range 10 {
		msg.Metadata.Set(fmt.Sprint("key", i), "value")
	}
	flight.Ensure(msg)
	h := mustRetry(t, middleware.RetryConfig{})(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	got := testing.AllocsPerRun(1000, func() {
		if _, err := h(msg); err != nil {
			t.Fatal(err)
		}
	})
	if got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
}
