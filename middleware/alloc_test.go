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
	breaker, err := middleware.NewBreaker(middleware.BreakerConfig{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]middleware.RetryConfig{"alone": {}, "with a breaker": {Breaker: breaker}} {
		h := mustRetry(t, config)(func(*message.Message) ([]*message.Message, error) { return nil, nil })
		got := testing.AllocsPerRun(1000, func() {
			if _, err := h(msg); err != nil {
				t.Fatal(err)
			}
		})
		if got != 0 {
			t.Errorf("%s: %v allocations, want 0", name, got)
		}
	}
}
