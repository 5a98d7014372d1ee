package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
)

// losesNothing publishes orders of one customer and handles them: the service is stopped in their midst, its connections are
// cut, an order fails once, and one can never be handled. The others must be handled, for the first time in order if
// ordered. cut may be nil.
func losesNothing(t *testing.T, open opener, ordered bool, cut func() error) {
	t.Helper()
	const n = 30
	publishOrders(t, open, n)
	var want, handled []string // handled: the first time, in order
	for i := 1; i <= n; i++ {
		if i != 7 {
			want = append(want, strconv.Itoa(i))
		}
	}
	var mu sync.Mutex
	var failed atomic.Bool
	all := make(chan struct{}) // closed when all are handled
	for part := 1; ; part++ {
		ctx, stop := context.WithCancel(t.Context())
		var calls atomic.Int64
		ended := make(chan error, 1)
		go func() {
			ended <- run(ctx, open, func(_ context.Context, e OrderPlaced) error {
				switch calls.Add(1) {
				case 3:
					if part <= 2 {
						stop() // this one is finished all the same
					}
				case 5:
					if cut != nil {
						if err := cut(); err != nil {
							return err
						}
					}
				}
				switch {
				case e.OrderID == "7":
					return classify.Permanent(errors.New("of no use"))
				case e.OrderID == "2" && !failed.Swap(true):
					return errors.New("not yet")
				}
				mu.Lock()
				defer mu.Unlock()
				if !slices.Contains(handled, e.OrderID) {
					handled = append(handled, e.OrderID)
					if len(handled) == len(want) {
						close(all)
					}
				}
				return nil
			})
		}()
		last := false
		select {
		case <-all:
			last = true
		case <-ctx.Done():
		case err := <-ended:
			t.Fatalf("run ended early: %v", err)
		case <-time.After(2 * time.Minute):
			t.Fatalf("waited two minutes; handled %v", handled)
		}
		stop()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("run returned %v, want nil", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("run did not return within a minute")
		}
		if last {
			break
		}
	}
	if !ordered {
		slices.Sort(handled)
		slices.Sort(want)
	}
	if !slices.Equal(handled, want) {
		t.Errorf("handled %v, want %v", handled, want)
	}
}

func publishOrders(t *testing.T, open opener, n int) {
	t.Helper()
	broker, closeBroker, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pub, err := broker.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	ctx := event.ContextWithSource(t.Context(), "/shop")
	for i := 1; i <= n; i++ {
		msg, err := event.New(ctx, "order.placed", OrderPlaced{OrderID: strconv.Itoa(i)}, event.WithKey("customer-1"))
		if err == nil {
			err = pub.Publish("orders", msg)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	closeBroker(&err)
	if err != nil {
		t.Fatal(err)
	}
}
