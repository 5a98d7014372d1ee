package kafka_test

import (
	"context"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/headrace-go/headrace/brokers"
)

// A subscriber that subscribes again and again kept something of each subscription until it was closed.
func TestEndedSubscriptionIsForgotten(t *testing.T) {
	type name struct{}
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	sub, err := open(t, quick(seeds)).Subscriber(brokers.Subscription{Consumer: "c"})
	if err != nil {
		t.Fatal(err)
	}
	gone := func() weak.Pointer[[64]byte] {
		value := new([64]byte)
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), name{}, value))
		defer cancel()
		in, err := sub.Subscribe(ctx, "topic")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		for range in { // none came before the end
		}
		return weak.Make(value)
	}()
	for late := time.After(30 * time.Second); gone.Value() != nil; runtime.GC() {
		select {
		case <-late:
			t.Fatal("the context of a subscription that has ended is still there")
		default:
		}
	}
	if err := sub.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}
