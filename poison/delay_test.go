package poison_test

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/poison"
)

// asked is an error that asked for a delay, after so many attempts.
func asked(attempts int) *middleware.DelayedError {
	at := time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC)
	return &middleware.DelayedError{
		After: time.Hour, ErrorType: "http.503", Attempts: attempts, FirstFailure: at, LastFailure: at.Add(1500 * time.Millisecond), Err: errDown,
	}
}

// A delayed message waits in an outbox, maybe for days, and is read by a program of another version.
func TestDelayWireForm(t *testing.T) {
	msg := newMessage(t.Context())
	f := flight.From(msg.Context())
	f.Consumer, f.ID = "billing.orders", "ce:/shop e-1"
	rec, ok := poison.Delayed(msg.Context(), asked(2))
	if !ok {
		t.Fatal("no record in a consumer")
	}
	sent, err := (&poison.Redrive{Kind: poison.KindDelay, Record: rec}).Message(0)
	if err != nil {
		t.Fatal(err)
	}
	sent.UUID = "d-1" // else a random one
	golden(t, "delay.txt", sent)

	got := arrive(t.Context(), sent)
	if got.UUID != msg.UUID || string(got.Payload) != string(msg.Payload) || !maps.Equal(got.Metadata, msg.Metadata) {
		t.Errorf("came back as %q %q %q\nwant %q %q %q", got.UUID, got.Payload, got.Metadata, msg.UUID, msg.Payload, msg.Metadata)
	}
	r := poison.RedriveOf(got.Context())
	if attempts, first := r.Earlier(); attempts != 2 || !first.Equal(rec.FirstFailure) {
		t.Errorf("had %d attempts, failed first at %v; want 2, %v", attempts, first, rec.FirstFailure)
	}
	if id := r.Identify(); id != rec.MessageID || id == "" {
		t.Errorf("the id is %q, want the frozen one, %q", id, rec.MessageID)
	}
	if r.Record.Deaths != 0 || r.Hops != 0 {
		t.Errorf("%d deaths, %d hops; want none: it has not failed for good", r.Record.Deaths, r.Hops)
	}
}

// What an earlier life had counts on, and a redrive of a dead letter begins its attempts anew.
func TestDelayOfARedrivenMessageKeepsItsDeaths(t *testing.T) {
	_, rec := die(t, gaveUp(0, errors.New("x")), nil)
	msg := redriven(t, rec, 3)
	r := poison.RedriveOf(msg.Context())
	if attempts, _ := r.Earlier(); attempts != 0 {
		t.Errorf("%d attempts count on after a redrive, want none", attempts)
	}
	f := flight.Ensure(msg)
	f.Consumer, f.Topic, f.ID = "billing.orders", "billing.orders.REDRIVE", r.Identify()
	delayed, _ := poison.Delayed(msg.Context(), asked(1))
	if delayed.Deaths != 1 || delayed.Hops != 3 || delayed.Batch != "batch-1" || delayed.Topic != "orders" || delayed.ID != "" || delayed.MessageID != rec.MessageID {
		t.Errorf("delayed as %+v; want its deaths, hops, batch, topic and id of before", delayed)
	}
}

func TestArrivalOutsideOfAConsumer(t *testing.T) {
	if _, ok := poison.Arrival(t.Context()); ok {
		t.Error("a record without a delivery")
	}
}
