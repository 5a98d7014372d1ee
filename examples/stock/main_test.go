package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/poison"
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
		ended <- run(ctx, openBroker, func(_ context.Context, e OrderPlaced) error {
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

// A record that cannot be decoded ends the session of a stock adapter whose unmarshaler tries to, for ever: its partition is stuck. Here the
// bytes arrive as they are, go to the dead letters, and the next one of the key is handled.
func TestUndecodableRecordIsDeadLetteredAndTheKeyGoesOn(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "orders.DLT"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	seeds := cluster.ListenAddrs()
	t.Setenv("KAFKA", strings.Join(seeds, ","))
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.ConsumeTopics("orders.DLT"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	garbage := []byte("\xff{\x00not json")
	headers := []kgo.RecordHeader{
		{Key: "ce_specversion", Value: []byte("1.0")},
		{Key: "ce_id", Value: []byte("bad")},
		{Key: "ce_source", Value: []byte("/shop")},
		{Key: "ce_type", Value: []byte("order.placed")},
	}
	bad := &kgo.Record{Topic: "orders", Key: []byte("customer-1"), Value: garbage, Headers: headers}
	if err := cl.ProduceSync(t.Context(), bad).FirstErr(); err != nil {
		t.Fatal(err)
	}
	publish(t, seeds, "good")

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	got, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- run(ctx, openBroker, func(_ context.Context, e OrderPlaced) error { got <- e.OrderID; return nil })
	}()
	select {
	case id := <-got:
		if id != "good" {
			t.Errorf("order %q was handled, want good", id)
		}
	case err := <-ended:
		t.Fatalf("run ended early: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("waited a minute for the order behind the garbage")
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("run returned %v, want nil", err)
	}
	wait, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	fetches := cl.PollFetches(wait)
	if err := fetches.Err(); err != nil {
		t.Fatal(err)
	}
	dead := fetches.Records()
	if len(dead) != 1 {
		t.Fatalf("%d dead letters, want 1", len(dead))
	}
	if !bytes.Equal(dead[0].Value, garbage) {
		t.Errorf("the dead letter's value is %q, want %q", dead[0].Value, garbage)
	}
	isKey := func(h kgo.RecordHeader) bool { return h.Key == poison.MetaKey && string(h.Value) == "customer-1" }
	if !slices.ContainsFunc(dead[0].Headers, isKey) {
		t.Errorf("the dead letter's headers are %q, want %s with customer-1", dead[0].Headers, poison.MetaKey)
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
