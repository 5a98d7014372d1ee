package amqp_test

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/internal/testserver"
)

func publisher(t testing.TB, b *amqp.Broker) message.Publisher {
	t.Helper()
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	return pub
}

// numbered returns messages whose ids and payloads are n numbers from first on.
func numbered(first, n int) []*message.Message {
	messages := make([]*message.Message, n)
	for i := range messages {
		text := strconv.Itoa(first + i)
		messages[i] = message.NewMessage(text, []byte(text))
	}
	return messages
}

func publish(t testing.TB, b *amqp.Broker, topic string, messages ...*message.Message) {
	t.Helper()
	if err := publisher(t, b).Publish(topic, messages...); err != nil {
		t.Fatal(err)
	}
}

// publishAll publishes n numbers in order, in calls of some, and what was not stored again.
func publishAll(t testing.TB, b *amqp.Broker, topic string, n, batch int) {
	t.Helper()
	pub := publisher(t, b)
	for i := 0; i < n; {
		size := min(batch, n-i)
		err := pub.Publish(topic, numbered(i, size)...)
		failed, ok := errors.AsType[*brokers.PublishError](err)
		switch {
		case err == nil:
			i += size
		case ok:
			i += failed.Failed[0].Index // the rest again, in order
		default:
			t.Errorf("Publish: %v", err)
			return
		}
	}
}

func subscribe(t testing.TB, b *amqp.Broker, consumer, topic string, window int) (message.Subscriber, <-chan *message.Message) {
	t.Helper()
	sub, err := b.Subscriber(brokers.Subscription{Consumer: consumer, Topic: topic, Window: window})
	if err != nil {
		t.Fatal(err)
	}
	in, err := sub.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return sub, in
}

func next(t testing.TB, in <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m, open := <-in:
		if !open {
			t.Fatal("the channel is closed, want a message")
		}
		return m
	case <-time.After(wait):
		t.Fatalf("no message in %v", wait)
	}
	return nil
}

func take(t testing.TB, in <-chan *message.Message, n int) []*message.Message {
	t.Helper()
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = next(t, in)
	}
	return messages
}

func ack(t testing.TB, in <-chan *message.Message, n int) (payloads []string) {
	t.Helper()
	for range n {
		m := next(t, in)
		payloads = append(payloads, string(m.Payload))
		m.Ack()
	}
	return payloads
}

func texts(first, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = strconv.Itoa(first + i)
	}
	return all
}

func sorted(texts []string) []string {
	return slices.Sorted(slices.Values(texts))
}

func delivery(t testing.TB, m *message.Message) *brokers.Delivery {
	t.Helper()
	d := brokers.DeliveryOf(m.Context())
	if d == nil {
		t.Fatalf("message %s has no delivery", m.Payload)
	}
	return d
}

// eventually waits until ok, and fails with what it says otherwise.
func eventually(t testing.TB, ok func() (bool, string)) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(wait)
	for {
		done, state := ok()
		if done {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("after %v: %s", wait, state)
		}
	}
}

func quiet(t testing.TB, in <-chan *message.Message) {
	t.Helper()
	select {
	case m := <-in:
		t.Errorf("message %s came, want none", m.Payload)
	case <-time.After(200 * time.Millisecond):
	}
}

// newProxy returns a proxy to the real server, and the URL by which the server is reached through it.
func newProxy(t testing.TB) (*testserver.Proxy, string) {
	t.Helper()
	u, err := url.Parse(testserver.AMQP(t))
	if err != nil {
		t.Fatal(err)
	}
	p := testserver.NewProxy(t, u.Host)
	u.Host = p.Addr()
	return p, u.String()
}
