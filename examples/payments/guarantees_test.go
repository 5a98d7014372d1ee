package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/headracetest"
	"github.com/headrace-go/headrace/headracetest/sqlitetest"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/runtime"
)

// spec describes the service to the test kit, on SQLite in memory.
func spec(t *testing.T) headracetest.Spec {
	store := sqlitetest.Open(t, tables)
	return headracetest.Spec{
		Service: func(b brokers.Broker) (*runtime.Runtime, error) {
			return service(b, inbox.Map(store, sqlLedger(store)))
		},
		Topic: "transfers",
		Event: func(ctx context.Context, key string, _ int) (*message.Message, error) {
			return requested(ctx, key, 100)
		},
		Poison: func(ctx context.Context, key string) (*message.Message, error) { return requested(ctx, key, 0) },
		State: func(ctx context.Context, key string) (balance string, err error) {
			err = store.DB().QueryRowContext(ctx, `SELECT coalesce(sum(cents), 0) FROM balances WHERE account = $1`, key).Scan(&balance)
			return balance, err
		},
		Publishes: []string{"transfer.booked"},
		Outbox:    store.Outbox(), // main relays it, service does not
	}
}

func requested(ctx context.Context, from string, cents int64) (*message.Message, error) {
	return event.New(ctx, "transfer.requested", TransferRequested{From: from, To: "bob", Cents: cents}, event.WithKey(from))
}

// Everything that can be known of any service.
func TestGuarantees(t *testing.T) { headracetest.Consumer(t, spec(t)) }

// A scenario of our own: the process dies on the first of two transfers, which both move the money once.
func TestTransferSurvivesAKill(t *testing.T) {
	s := spec(t)
	ctx := event.ContextWithSource(t.Context(), "/bank")
	first, err := requested(ctx, "alice", 100)
	if err != nil {
		t.Fatal(err)
	}
	second, err := requested(ctx, "alice", 200)
	if err != nil {
		t.Fatal(err)
	}
	got := headracetest.Run(t, s, headracetest.KilledAfterCommit(first), headracetest.Twice(second))
	if balance, err := s.State(t.Context(), "alice"); err != nil || balance != "-300" {
		t.Errorf("alice has %s (%v), want -300", balance, err)
	}
	if n := len(got.Published["bookings"]); n != 2 {
		t.Errorf("%d bookings, want 2", n)
	}
}

// docs/testing.md shows this very spec.
func TestDocsShowThisSpec(t *testing.T) {
	source, err := os.ReadFile("guarantees_test.go")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, spec, _ := strings.Cut(string(source), "\n// spec describes")
	spec, _, _ = strings.Cut(spec, "\n\n// A scenario")
	if want := "```go\n// spec describes" + spec + "\n```"; !strings.Contains(string(docs), want) {
		t.Errorf("docs/testing.md does not contain the spec as it is here:\n%s", want)
	}
}
