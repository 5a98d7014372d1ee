package main

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlite"
)

// The handlers of the service, unchanged, on SQLite and the memory broker.
func TestTransfersOnSQLite(t *testing.T) {
	store, err := sqlite.Open(filepath.Join(t.TempDir(), "payments.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.DB().ExecContext(t.Context(), tables); err != nil {
		t.Fatal(err)
	}
	broker, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	rt, err := service(broker, inbox.Map(store, sqlLedger(store)))
	if err != nil {
		t.Fatal(err)
	}
	rt.Relay(store.Outbox(), outbox.RelayConfig{})
	booked := make(chan TransferBooked, 8)
	runtime.Handle(rt.Consumer("test.bookings", "bookings"), "transfer.booked", func(_ context.Context, b TransferBooked) error {
		booked <- b
		return nil
	})

	publishTransfers(t, broker)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	for i := range 2 {
		select {
		case <-booked:
		case <-time.After(30 * time.Second):
			t.Fatalf("booking %d of 2 did not come", i+1)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run returned %v, want nil", err)
	}
	var alice, bob int64
	if err := store.DB().QueryRowContext(t.Context(), `SELECT (SELECT cents FROM balances WHERE account = 'alice'), (SELECT cents FROM balances WHERE account = 'bob')`).Scan(&alice, &bob); err != nil {
		t.Fatal(err)
	}
	if alice != -300 || bob != 300 {
		t.Errorf("balances are alice %d, bob %d, want -300, 300: each transfer once", alice, bob)
	}
	if len(booked) != 0 {
		t.Errorf("%d more bookings, want none for duplicates", len(booked))
	}
}

// publishTransfers asks for two transfers, each of them twice.
func publishTransfers(t *testing.T, broker *memory.Broker) {
	t.Helper()
	pub, err := broker.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	ctx := event.ContextWithSource(t.Context(), "/bank")
	for range 2 {
		for i := range 2 {
			msg, err := event.New(ctx, "transfer.requested", TransferRequested{"alice", "bob", 100 * int64(i+1)},
				event.WithID(fmt.Sprint(i)), event.WithKey("alice"))
			if err != nil {
				t.Fatal(err)
			}
			if err := pub.Publish("transfers", msg); err != nil {
				t.Fatal(err)
			}
		}
	}
}
