package kafka_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/kafka"
)

func pullFrom(t *testing.T, b *kafka.Broker, topic string, window int) (brokers.Pull, message.Subscriber) {
	t.Helper()
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "c", Topic: topic, Window: window})
	if err != nil {
		t.Fatal(err)
	}
	p, err := sub.(brokers.Puller).Pull(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return p, sub
}

// next waits for a message as an intake does.
func next(t *testing.T, p brokers.Pull) *message.Message {
	t.Helper()
	late := time.After(15 * time.Second)
	for {
		if m := p.Next(); m != nil {
			return m
		}
		select {
		case _, open := <-p.Ready():
			if !open {
				t.Fatal("the subscription has ended, want a message")
			}
		case <-late:
			t.Fatal("no message in 15 s")
		}
	}
}

// Ten deliveries are ready to be taken and three were, when the partition is taken away. Those in the queue would run here and at the next owner;
// waiting for them, which nobody works on, would hold up the group.
func TestRevokedDeliveriesLeaveTheQueue(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fill(t, seeds, "topic", 0, 10, key)
	config := quick(seeds)
	config.RevokeWait = 100 * time.Millisecond
	config.Options = append(config.Options, kgo.Balancers(kgo.RangeBalancer()))
	b := open(t, config)
	p, _ := pullFrom(t, b, "topic", 16)
	taken, late := []*message.Message{next(t, p), next(t, p)}, next(t, p)
	eventually(t, "the rest is in the queue", 5*time.Second, func() bool {
		s := b.Stats()
		return len(s) == 1 && s[0].InFlight == 3 && s[0].Waiting == 7
	})
	for _, m := range taken {
		m.Ack()
		at(m).Settled()
	}
	other := read(t, open(t, config), "topic", 16)
	<-late.Context().Done()
	late.Nack()
	at(late).Settled()
	seen := make(map[int64]int)
	for len(seen) < 8 {
		var m *message.Message
		select {
		case m = <-other.in:
		case <-time.After(time.Millisecond):
			if m = p.Next(); m == nil {
				continue
			}
		}
		seen[at(m).Offset]++
		m.Ack()
		at(m).Settled()
	}
	other.quiet(100 * time.Millisecond)
	for o := range int64(10) {
		if want := min(int(o)/2, 1); seen[o] != want {
			t.Errorf("offset %d came %d times after the first two were acked, want %d", o, seen[o], want)
		}
	}
}

// The subscription ends with deliveries in the queue. Nothing comes out of it after that, and whoever waits is told.
func TestPullEndsWithItsSubscription(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fill(t, seeds, "topic", 0, 10, key)
	b := open(t, quick(seeds))
	p, sub := pullFrom(t, b, "topic", 16)
	m := next(t, p)
	m.Ack()
	at(m).Settled()
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	if m := p.Next(); m != nil {
		t.Errorf("offset %d came after the end", at(m).Offset)
	}
	for open := true; open; {
		select {
		case _, open = <-p.Ready():
		case <-time.After(15 * time.Second):
			t.Fatal("Ready is not closed")
		}
	}
	if o, _ := offsetOf(t, seeds, "c", "topic", 0); o != 1 {
		t.Errorf("committed offset is %d, want 1: one was acked, and those in the queue were not", o)
	}
	p, _ = pullFrom(t, b, "topic", 16)
	for want := range int64(9) {
		if m := next(t, p); at(m).Offset != want+1 {
			t.Errorf("the next owner got offset %d, want %d", at(m).Offset, want+1)
		}
	}
}
