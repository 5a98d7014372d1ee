package jetstream_test

import (
	"testing"
	"time"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/jetstream"
)

func TestDelayedDeliveryHoldsUpNothingAndComesAfterItsTime(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	_, in := subscribe(t, b, "c", "orders", 2)
	publish(t, b, "orders", numbered(0, 2)...)
	const delay = 500 * time.Millisecond
	first := next(t, in)
	began := time.Now()
	if !brokers.DeliveryOf(first.Context()).Delay(delay) {
		t.Error("Delay() = false")
	}
	second := next(t, in)
	if string(second.Payload) != "1" {
		t.Errorf("got %q, want 1 while 0 is delayed", second.Payload)
	}
	second.Ack()
	again := next(t, in)
	if took, d := time.Since(began), brokers.DeliveryOf(again.Context()); string(again.Payload) != "0" || d.Count != 2 || took < delay {
		t.Errorf("got %q, delivery %d, after %v; want 0, the second delivery, after %v", again.Payload, d.Count, took, delay)
	}
	again.Ack()
}
