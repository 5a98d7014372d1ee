package brokertest

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

func (t *T) withCancel() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return ctx, cancel
}

type contextKey struct{}

func origin(t *T) {
	t.publish(0, 3)
	sub := t.subscriber("c", t.window(4))
	in, err := sub.Subscribe(context.WithValue(t.Context(), contextKey{}, "value"), t.topic)
	if err != nil {
		t.Fatalf("Subscribe: %v", err)
	}
	r := &reader{t: t, sub: sub, in: in}
	last := make(map[int32]int64)
	incarnation := ""
	for i := range 3 {
		m := r.next()
		d := t.delivery(m)
		if d.Topic != t.topic {
			t.Errorf("Delivery.Topic is %q, want %q", d.Topic, t.topic)
		}
		if i > 0 && d.Incarnation != incarnation {
			t.Errorf("Delivery.Incarnation changed from %q to %q", incarnation, d.Incarnation)
		}
		incarnation = d.Incarnation
		if before, there := last[d.Partition]; there && d.Offset <= before && d.Offset != -1 {
			t.Errorf("partition %d: offset %d came after offset %d", d.Partition, d.Offset, before)
		}
		last[d.Partition] = d.Offset
		if since := time.Since(d.Time); !d.Time.IsZero() && (since < -time.Minute || since > time.Hour) {
			t.Errorf("Delivery.Time is %v, which is not when the message was published", d.Time)
		}
		if t.caps.Releases != (d.Release != nil) {
			t.Errorf("Capabilities.Releases is %v, but Delivery.Release is there: %v", t.caps.Releases, d.Release != nil)
		}
		t.count(m, 1)
		if got := m.Context().Value(contextKey{}); got != "value" {
			t.Errorf("the message's context has %v for a value of Subscribe's context, want %q", got, "value")
		}
		m.Ack()
	}
}

func (r *reader) contextEnds(m *message.Message, when string) {
	r.t.Helper()
	select {
	case <-m.Context().Done():
	case <-time.After(r.t.Wait):
		r.t.Errorf("the context of message %s has not ended %v after %s", m.Payload, r.t.Wait, when)
	}
}

func contextEndsWithAck(t *T) {
	size := t.window(3)
	t.publish(0, size)
	r := t.read("c", size)
	held := r.take(size)
	for i := size - 1; i > 0; i-- {
		if err := held[i].Context().Err(); err != nil {
			t.Errorf("the context of message %s has ended before its ack: %v", held[i].Payload, err)
		}
		held[i].Ack()
		r.contextEnds(held[i], "its ack")
	}
	if err := held[0].Context().Err(); err != nil {
		t.Errorf("the context of message %s has ended with another's ack: %v", held[0].Payload, err)
	}
	held[0].Nack()
	r.contextEnds(held[0], "its nack")
}

func contextEndsWithSubscriber(t *T) {
	t.publish(0, 1)
	r := t.read("c", 1)
	m := r.next()
	r.close()
	r.contextEnds(m, "its subscriber's Close")

	ctx, cancel := t.withCancel()
	sub := t.subscriber("c", 1)
	in, err := sub.Subscribe(ctx, t.topic)
	if err != nil {
		t.Fatalf("Subscribe: %v", err)
	}
	r = &reader{t: t, sub: sub, in: in}
	m = r.next()
	cancel()
	r.contextEnds(m, "the end of Subscribe's context")
	r.closed()
}

// The stock JetStream adapter sends on a closed channel when its context ends, which crashes the process.
func cancelWhileBusy(t *T) {
	const rounds, each = 5, 40
	seen := make(map[int]bool)
	for round := range rounds {
		t.publish(round*each, each)
		ctx, cancel := t.withCancel()
		sub := t.subscriber("c", t.window(8))
		in, err := sub.Subscribe(ctx, t.topic)
		if err != nil {
			t.Fatalf("Subscribe: %v", err)
		}
		r := &reader{t: t, sub: sub, in: in}
		// A reader that is quicker than the cancel below may have had all of them in an earlier round.
		for n := 0; n < each/2 && len(seen) < rounds*each; n++ {
			m := r.next()
			seen[number(m)] = true
			m.Ack()
		}
		var wg sync.WaitGroup
		wg.Go(cancel)
		if round%2 == 1 {
			wg.Go(func() { _ = sub.Close() })
		}
		for m := range in {
			seen[number(m)] = true
			m.Ack()
		}
		wg.Wait()
	}
	r := t.read("c", t.window(8))
	limit := time.After(t.Wait)
	for len(seen) < rounds*each {
		select {
		case m := <-r.in:
			seen[number(m)] = true
			m.Ack()
		case <-limit:
			t.Fatalf("%d of %d messages were lost", rounds*each-len(seen), rounds*each)
		}
	}
	if seen[-1] {
		t.Error("a message came that nobody had published")
	}
}

func closeUnread(t *T) {
	t.publish(0, 20)
	r := t.read("c", t.window(8))
	r.next() // it has begun
	done := make(chan error)
	go func() { done <- r.sub.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Close: %v", err)
		}
	case <-time.After(t.Wait):
		t.Fatalf("Close hangs for %v while nobody reads the channel", t.Wait)
	}
	r.closed()
	r = t.read("c", t.window(8))
	t.same("the next subscriber", r.ack(20), upTo(20))
}

func settleAfterClose(t *T) {
	size := t.window(3)
	t.publish(0, size)
	r := t.read("c", size)
	held := r.take(size)
	r.close()
	for i, m := range held {
		d := t.delivery(m)
		switch {
		case i == 0:
			m.Ack()
		case i == 1:
			m.Nack()
		}
		if d.Release != nil {
			d.Release()
		}
	}
	r = t.read("c", size)
	t.same("the next subscriber", r.ack(size), upTo(size))
}

func closeTwice(t *T) {
	pub, r := t.publisher(), t.read("c", 1)
	idle := t.subscriber("idle", 1)
	for range 2 {
		if err := pub.Close(); err != nil {
			t.Errorf("Publisher.Close: %v", err)
		}
		if err := idle.Close(); err != nil {
			t.Errorf("Subscriber.Close: %v", err)
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := r.sub.Close(); err != nil {
				t.Errorf("Subscriber.Close: %v", err)
			}
		})
	}
	wg.Wait()
	r.closed()
	if err := pub.Publish(t.topic, message.NewMessage("id", nil)); err == nil {
		t.Error("Publish after Publisher.Close gave no error")
	}
	if _, err := r.sub.Subscribe(t.Context(), t.topic); err == nil {
		t.Error("Subscribe after Subscriber.Close gave no error")
	}

	pub, r = t.publisher(), t.read("c", 1)
	for range 2 {
		if err := t.broker.Close(); err != nil {
			t.Errorf("Broker.Close: %v", err)
		}
	}
	r.closed()
	if err := pub.Publish(t.topic, message.NewMessage("id", nil)); err == nil {
		t.Error("Publish after Broker.Close gave no error")
	}
	if _, err := t.broker.Publisher(); err == nil {
		t.Error("Publisher after Broker.Close gave no error")
	}
	if _, err := t.broker.Subscriber(brokers.Subscription{Consumer: "c", Topic: t.topic}); err == nil {
		t.Error("Subscriber after Broker.Close gave no error")
	}
}
