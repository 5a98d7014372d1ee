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
func TestStreamOrDurableThatIsMadeAgainEndsTheSubscription(t *testing.T) {
	for _, tt := range []struct {
		name   string
		stream bool
		acks   []int
	}{
		{"stream", true, []int{1, 0}},
		{"durable", false, []int{0, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBroker(t, jetstream.Config{})
			adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 2)...)
			_, in := adaptertest.Subscribe(t, b, "c", "orders", 2)
			held := adaptertest.Take(t, in, 2)
			js := admin(t, b)
			durable := remake(t, js, tt.stream)
			adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 10, 1)...)

			held[tt.acks[0]].Ack() // makes room
			adaptertest.Eventually(t, func() (bool, string) {
				info, err := durable.Info(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return info.Delivered.Consumer > 0, "the new durable has delivered nothing"
			})
			held[tt.acks[1]].Ack()
			select {
			case m, open := <-in:
				if open {
					t.Errorf("message %s came", m.Payload)
				}
			case <-time.After(wait):
				t.Fatalf("the channel is not closed in %v", wait)
			}
			if !tt.stream {
				return
			}
			adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 11, 1)...)
			_, in = adaptertest.Subscribe(t, b, "c", "orders", 2)
			if got, want := adaptertest.Ack(t, in, 2), adaptertest.Numbers(10, 2); !slices.Equal(got, want) {
				t.Errorf("the next subscription got %q, want %q", got, want)
			}
		})
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
	// A durable is told from an earlier one by its age.
	adaptertest.Eventually(t, func() (bool, string) {
		age := time.Since(c.CachedInfo().Created)
		return stream || age > 1100*time.Millisecond, "the durable is young: " + age.String()
	})
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
