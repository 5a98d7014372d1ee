package jetstream_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/jetstream"
)

// An operator deleted a stream and made it again while a member held its window, and so had no request open that the server could have
// ended. The first new message had the number of a held one, was taken for its redelivery, and was lost by its ack; others would have been
// handed over with the identity of messages that had been handled before.
func TestStreamThatIsMadeAgainEndsTheSubscription(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 2)...)
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 2)
	held := adaptertest.Take(t, in, 2)
	durable := remake(t, admin(t, b), true)
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 10, 1)...)

	held[1].Ack() // makes room
	adaptertest.Eventually(t, func() (bool, string) {
		info, err := durable.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.Delivered.Consumer > 0, "the new durable has delivered nothing"
	})
	held[0].Ack()
	select {
	case m, open := <-in:
		if open {
			t.Errorf("message %s came", m.Payload)
		}
	case <-time.After(wait):
		t.Fatalf("the channel is not closed in %v", wait)
	}
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 11, 1)...)
	_, in = adaptertest.Subscribe(t, b, "c", "orders", 2)
	if got, want := adaptertest.Ack(t, in, 2), adaptertest.Numbers(10, 2); !slices.Equal(got, want) {
		t.Errorf("the next subscription got %q, want %q", got, want)
	}
}

// A server before 2.10 that restarts tells another time of a durable's creation. A subscription that took this for another durable ended with
// each restart. One that really was made again delivers everything once more, and loses nothing.
func TestDurableThatIsMadeAgainLosesNothing(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 2)...)
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 2)
	held := adaptertest.Take(t, in, 2)
	remake(t, admin(t, b), false)
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 2, 1)...)
	for _, m := range held {
		m.Ack()
	}
	for m := adaptertest.Next(t, in); string(m.Payload) != "2"; m = adaptertest.Next(t, in) {
		m.Ack()
	}
}

// remake deletes the durable of orders, or the stream too, and makes it again.
func remake(t *testing.T, js natsjs.JetStream, stream bool) natsjs.Consumer {
	t.Helper()
	s, err := js.Stream(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Consumer(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	if stream {
		err = js.DeleteStream(t.Context(), "orders")
	} else {
		err = js.DeleteConsumer(t.Context(), "orders", "c")
	}
	if err != nil {
		t.Fatal(err)
	}
	if stream {
		if _, err := js.CreateStream(t.Context(), s.CachedInfo().Config); err != nil {
			t.Fatal(err)
		}
	}
	if c, err = js.CreateConsumer(t.Context(), "orders", c.CachedInfo().Config); err != nil {
		t.Fatal(err)
	}
	return c
}

// An operator lowered a durable's limits. Each request was then refused, for ever, since the subscription kept to those of its start.
func TestLoweredLimitsAreObeyed(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 8)...)
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 8)
	held := adaptertest.Take(t, in, 8)
	js := admin(t, b)
	c, err := js.Consumer(t.Context(), "orders", "c")
	if err != nil {
		t.Fatal(err)
	}
	config := c.CachedInfo().Config
	config.MaxRequestBatch, config.MaxRequestExpires = 2, 10*time.Second
	if _, err := js.UpdateConsumer(t.Context(), "orders", config); err != nil {
		t.Fatal(err)
	}
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 8, 8)...)
	for _, m := range held {
		m.Ack()
	}
	for i := 8; i < 16; i++ {
		m := adaptertest.Next(t, in)
		if want := strconv.Itoa(i); string(m.Payload) != want {
			t.Errorf("received %s, want %s", m.Payload, want)
		}
		m.Ack()
	}
}
