package amqp_test

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/internal/testserver"
)

// nacks has each basic.nack that a broker sends noted.
func nacks(line *tap) <-chan struct{} {
	seen := make(chan struct{}, 1000)
	line.set(func(sent string) {
		for range strings.Count(sent, "\x00\x3c\x00\x78") {
			seen <- struct{}{}
		}
	})
	return seen
}

func awaitNacks(t *testing.T, seen <-chan struct{}, n int) {
	t.Helper()
	for i := range n {
		select {
		case <-seen:
		case <-time.After(wait):
			t.Fatalf("%d deliveries went back to the queue, want %d", i, n)
		}
	}
}

// payloads takes n messages and does not settle them.
func payloads(t *testing.T, in <-chan *message.Message, n int) (got []string) {
	for _, m := range adaptertest.Take(t, in, n) {
		got = append(got, string(m.Payload))
	}
	return got
}

// A consumer was paused, and what had been prefetched waited in the adapter: after its patience the server closed the channel, on which handlers
// still ran.
func TestWhatWaitsInTheAdapterGoesBackInTime(t *testing.T) {
	line, url := newTap(t)
	b := open(t, amqp.Config{URLs: []string{url}, Patience: time.Second})
	topic := rand.Text()
	_, in := adaptertest.Subscribe(t, b, "c", topic, 4)
	seen := nacks(line)
	adaptertest.Publish(t, open(t, amqp.Config{URLs: []string{testserver.AMQP(t)}}), topic, adaptertest.Numbered("", 0, 6)...)
	awaitNacks(t, seen, 4)
	for i, m := range adaptertest.Take(t, in, 4) {
		d := adaptertest.Delivery(t, m)
		if waited := time.Since(d.Received); string(m.Payload) != adaptertest.Numbers(0, 4)[i] || d.Count < 2 || waited > wait {
			t.Errorf("got %q, delivery %d, which has waited for %v; want %d, for the second time at least", m.Payload, d.Count, waited, i)
		}
		m.Ack()
		d.Settled()
	}
	if got, want := adaptertest.Ack(t, in, 2), adaptertest.Numbers(4, 2); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A delivery was given back at the end of its hold. A later one of its key, which waited in the adapter for its place, went first.
func TestNothingThatWaitsGoesBeforeWhatWasHeldForTooLong(t *testing.T) {
	line, url := newTap(t)
	b := open(t, amqp.Config{URLs: []string{url}, Patience: 5 * time.Second, LagInterval: time.Hour})
	topic := rand.Text()
	_, in := adaptertest.Subscribe(t, b, "c", topic, 3)
	other := open(t, amqp.Config{URLs: []string{testserver.AMQP(t)}})
	adaptertest.Publish(t, other, topic, adaptertest.Numbered("", 0, 1)...)
	first := adaptertest.Next(t, in)
	d := adaptertest.Delivery(t, first)
	// The server forces real time: it has to be held for longer than two fifths of the patience.
	<-time.After(2*time.Second - time.Since(d.Received))
	adaptertest.Publish(t, other, topic, adaptertest.Numbered("", 1, 2)...)
	seen := nacks(line)
	adaptertest.Eventually(t, func() (bool, string) {
		n, known := b.Lag("c", topic)
		return known && n == 3, fmt.Sprint(n, " are here, want 3")
	})
	d.Release()
	awaitNacks(t, seen, 3)
	if got, want := payloads(t, in, 3), adaptertest.Numbers(0, 3); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
