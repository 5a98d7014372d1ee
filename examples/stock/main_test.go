package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/event"
)

// Headrace's own adapter publishes; the stock one consumes, fails once, and stops cleanly.
func TestStockAdapterConsumesWhatOursPublished(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "orders", "orders.DLT"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	seeds := cluster.ListenAddrs()
	t.Setenv("KAFKA", strings.Join(seeds, ","))
	publish(t, seeds, "1", "2", "3")

	var runs atomic.Int64
	got := make(chan string, 16)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, func(_ context.Context, e OrderPlaced) error {
			if runs.Add(1) == 1 {
				return errors.New("not yet")
			}
			got <- e.OrderID
			return nil
		})
	}()
	for _, want := range []string{"1", "2", "3"} {
		select {
		case id := <-got:
			if id != want {
				t.Errorf("handled %s, want %s: the key's order", id, want)
			}
		case err := <-ended:
			t.Fatalf("run ended early: %v", err)
		case <-time.After(time.Minute):
			t.Fatalf("waited a minute for order %s", want)
		}
	}
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("run returned %v, want nil", err)
		}
	case <-time.After(time.Minute):
		t.Error("run did not return within a minute")
	}
}

func publish(t *testing.T, seeds []string, ids ...string) {
	t.Helper()
	broker, err := kafka.New(kafka.Config{Seeds: seeds})
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	pub, err := broker.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	ctx := event.ContextWithSource(t.Context(), "/shop")
	for _, id := range ids {
		msg, err := event.New(ctx, "order.placed", OrderPlaced{OrderID: id}, event.WithKey("customer-1"))
		if err != nil {
			t.Fatal(err)
		}
		if err := pub.Publish("orders", msg); err != nil {
			t.Fatal(err)
		}
	}
}
