package adaptertest

import (
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

// Wait bounds the wait for whatever has to come.
const Wait = 20 * time.Second

// Opened is a broker that was opened, which is closed with the test.
func Opened[B brokers.Broker](tb testing.TB, b B, err error) B {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return b
}

// Numbers are n texts, from first on.
func Numbers(first, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = strconv.Itoa(first + i)
	}
	return all
}

// Numbered are messages of one key whose payloads are n numbers, from first on. Their ids are key-number; without a key, the number.
func Numbered(key string, first, n int) []*message.Message {
	all := make([]*message.Message, n)
	for i, number := range Numbers(first, n) {
		all[i] = message.NewMessage(number, []byte(number))
		if key != "" {
			all[i].UUID = key + "-" + number
			all[i].Metadata["ce_partitionkey"] = key
		}
	}
	return all
}

// Publisher returns a publisher of b.
func Publisher(tb testing.TB, b brokers.Broker) message.Publisher {
	tb.Helper()
	pub, err := b.Publisher()
	if err != nil {
		tb.Fatal(err)
	}
	return pub
}

// Publish publishes messages in one call.
func Publish(tb testing.TB, b brokers.Broker, topic string, messages ...*message.Message) {
	tb.Helper()
	if err := Publisher(tb, b).Publish(topic, messages...); err != nil {
		tb.Fatal(err)
	}
}

// Subscribe opens a subscription, which ends with the test or its subscriber.
func Subscribe(tb testing.TB, b brokers.Broker, consumer, topic string, window int) (message.Subscriber, <-chan *message.Message) {
	tb.Helper()
	sub, err := b.Subscriber(brokers.Subscription{Consumer: consumer, Topic: topic, Window: window})
	if err != nil {
		tb.Fatal(err)
	}
	in, err := sub.Subscribe(tb.Context(), topic)
	if err != nil {
		tb.Fatal(err)
	}
	return sub, in
}

// Next returns the next message, which must come.
func Next(tb testing.TB, in <-chan *message.Message) *message.Message {
	tb.Helper()
	select {
	case m, open := <-in:
		if !open {
			tb.Fatal("the channel is closed, want a message")
		}
		return m
	case <-time.After(Wait):
		tb.Fatalf("no message in %v", Wait)
	}
	return nil
}

// Take returns the next n messages, which are not settled.
func Take(tb testing.TB, in <-chan *message.Message, n int) []*message.Message {
	tb.Helper()
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = Next(tb, in)
	}
	return messages
}

// Ack acks the next n messages, one after another, and returns their payloads.
func Ack(tb testing.TB, in <-chan *message.Message, n int) []string {
	tb.Helper()
	payloads := make([]string, n)
	for i := range payloads {
		m := Next(tb, in)
		payloads[i] = string(m.Payload)
		m.Ack()
	}
	return payloads
}

// Quiet checks that no message comes for a time.
func Quiet(tb testing.TB, in <-chan *message.Message, d time.Duration) {
	tb.Helper()
	select {
	case m, open := <-in:
		if open {
			tb.Fatalf("message %s came, delivery %d, want none", m.Payload, Delivery(tb, m).Count)
		}
	case <-time.After(d):
	}
}

// Ends waits for the end of a delivery's context.
func Ends(tb testing.TB, m *message.Message) {
	tb.Helper()
	select {
	case <-m.Context().Done():
	case <-time.After(Wait):
		tb.Fatalf("the context of message %s has not ended in %v", m.Payload, Wait)
	}
}

// Delivery is what the adapter says of m.
func Delivery(tb testing.TB, m *message.Message) *brokers.Delivery {
	tb.Helper()
	d := brokers.DeliveryOf(m.Context())
	if d == nil {
		tb.Fatalf("message %s has no delivery", m.Payload)
	}
	return d
}

// Eventually waits until ok, and fails with what it says otherwise.
func Eventually(tb testing.TB, ok func() (done bool, state string)) {
	tb.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(Wait)
	for {
		done, state := ok()
		if done {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			tb.Fatalf("after %v: %s", Wait, state)
		}
	}
}
