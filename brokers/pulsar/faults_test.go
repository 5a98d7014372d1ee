package pulsar_test

import (
	"crypto/rand"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers/pulsar"
)

func upTo(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = strconv.Itoa(i)
	}
	return all
}

// The server gives to others what came over a lost connection. Whoever holds it is told, and what he acks is no settlement.
func TestLostConnectionEndsDeliveriesAndLosesNothing(t *testing.T) {
	p, client := proxied(t)
	b := open(t, pulsar.Config{Client: client})
	topic := rand.Text()
	_, in := subscribe(t, b, "c", topic, 4)
	publish(t, open(t, pulsar.Config{}), topic, numbered("key", 0, 10)...)
	held := []*message.Message{next(t, in), next(t, in)}
	held[0].Nack() // it waits here when the connection is lost
	p.Down()
	ends(t, held[1])
	held[1].Ack()
	p.Up()
	var got []string
	for len(got) < 10 {
		m := next(t, in)
		if err := m.Context().Err(); err != nil {
			continue // it came before the connection was lost
		}
		got = append(got, string(m.Payload))
		m.Ack()
	}
	if want := upTo(10); !slices.Equal(got, want) {
		t.Errorf("after the connection was lost: %q, want %q", got, want)
	}
	quiet(t, in)
}

// A process that is killed says nothing: its connection ends. What it held comes to the others, in order, and nothing else before it.
func TestWhatADeadProcessHeldComesToAnother(t *testing.T) {
	p, client := proxied(t)
	topic := rand.Text()
	_, dead := subscribe(t, open(t, pulsar.Config{Client: client}), "c", topic, 4)
	b := open(t, pulsar.Config{})
	publish(t, b, topic, numbered("key", 0, 20)...) // more than its window and its queue
	for range 4 {
		next(t, dead)
	}
	_, in := subscribe(t, b, "c", topic, 8)
	quiet(t, in) // the key is the dead one's
	p.Down()
	if got, want := ack(t, in, 20), upTo(20); !slices.Equal(got, want) {
		t.Errorf("the other member got %q, want %q", got, want)
	}
	quiet(t, in)
}

// The server moves a topic to another broker, or restarts in an orderly way: it closes its consumers and producers.
func TestTopicThatMovesLosesNothing(t *testing.T) {
	b := open(t, pulsar.Config{})
	topic := rand.Text()
	_, in := subscribe(t, b, "c", topic, 4)
	// Not by a producer that moves as well: the client (v0.19.0) writes its name then while it may be sending, which is a race of its own.
	before := open(t, pulsar.Config{})
	publish(t, before, topic, numbered("key", 0, 3)...)
	if err := before.Close(); err != nil {
		t.Error(err)
	}
	held := next(t, in)
	admin(t, "PUT", topic+"/unload", "")
	ends(t, held)
	publish(t, open(t, pulsar.Config{}), topic, numbered("key", 3, 3)...)
	var got []string
	for len(got) < 6 {
		if m := next(t, in); m.Context().Err() == nil {
			got = append(got, string(m.Payload))
			m.Ack()
		}
	}
	if want := upTo(6); !slices.Equal(got, want) {
		t.Errorf("after the topic moved: %q, want %q", got, want)
	}
	quiet(t, in)
}

// The end of a subscription is bounded although the client waits for a server.
func TestCloseWithoutAServerEndsInTime(t *testing.T) {
	p, client := proxied(t)
	b := open(t, pulsar.Config{Client: client, CloseTimeout: 500 * time.Millisecond})
	topic := rand.Text()
	sub, in := subscribe(t, b, "c", topic, 4)
	publish(t, b, topic, numbered("key", 0, 2)...)
	m := next(t, in)
	p.Down()
	m.Ack()
	began := time.Now()
	if err := sub.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("Close took %v, want about 500 ms", took)
	}
	p.Up()
}
