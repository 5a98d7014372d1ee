package memory_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/memory"
)

func TestDelayedDeliveryHoldsUpNothingAndComesAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		pub, err := b.Publisher()
		if err != nil {
			t.Fatal(err)
		}
		if err := pub.Publish("orders", message.NewMessage("1", nil), message.NewMessage("2", nil), message.NewMessage("3", nil)); err != nil {
			t.Fatal(err)
		}
		sub, err := b.Subscriber(brokers.Subscription{Consumer: "c", Topic: "orders", Window: 1})
		if err != nil {
			t.Fatal(err)
		}
		in, err := sub.Subscribe(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		next := func(want string, count int, after time.Duration) *brokers.Delivery {
			t.Helper()
			m := <-in
			d := brokers.DeliveryOf(m.Context())
			if m.UUID != want || d.Count != count || time.Since(began).Round(time.Second) != after {
				t.Fatalf("got %q, delivery %d, after %v; want %q, %d, %v", m.UUID, d.Count, time.Since(began), want, count, after)
			}
			if count == 2 || want == "3" {
				m.Ack()
			}
			return d
		}
		if !next("1", 1, 0).Delay(2 * time.Minute) {
			t.Error("Delay() = false")
		}
		next("2", 1, 0).Delay(time.Minute)
		next("3", 1, 0)
		next("2", 2, time.Minute)
		next("1", 2, 2*time.Minute)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if left := b.Unacked("orders", "c"); left != 0 {
			t.Errorf("%d un-acked, want 0", left)
		}
	})
}
