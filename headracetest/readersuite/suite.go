// Package readersuite is the conformance suite of adapters whose topics can be read by somebody who is no consumer: what every
// [brokers.Reader] promises, as tests.
package readersuite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

// limit bounds every wait.
const limit = 60 * time.Second

// Broker is an adapter with a reader.
type Broker interface {
	brokers.Broker
	brokers.Reader
}

// Run runs the suite. open is called once; topics of one partition, or none, are made as they are published to. unique makes names
// that nobody else uses.
func Run(t *testing.T, open func(t *testing.T) Broker, unique func(name string) string) {
	b := open(t)
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, b Broker, topic string)
	}{
		{"ReadsWhatASubscriptionWouldDeliver", same},
		{"Ranges", ranges},
		{"EndsAtItsEnd", ends},
		{"NothingIsThere", nothing},
		{"TellsNoConsumer", unseen},
		{"ErrorsAndContexts", stops},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, b, unique(tc.name)) })
	}
}

// fill publishes messages with the payloads 0 to n-1 and returns the topic's only partition.
func fill(t *testing.T, b Broker, topic string, n int) int32 {
	t.Helper()
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := pub.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i := range n {
		m := message.NewMessage(fmt.Sprint("u-", i), fmt.Append(nil, i))
		m.Metadata = message.Metadata{"ce_partitionkey": "k", "x": fmt.Sprint(i)}
		if err := pub.Publish(topic, m); err != nil {
			t.Fatal(err)
		}
	}
	ends, err := b.Ends(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for p, end := range ends {
		if end > 1 || len(ends) == 1 {
			return p
		}
	}
	t.Fatalf("the ends of %s are %v", topic, ends)
	return 0
}

func read(t *testing.T, b Broker, topic string, r brokers.Range) []*message.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var got []*message.Message
	if err := b.Read(ctx, topic, r, func(m *message.Message) error { got = append(got, m); return nil }); err != nil {
		t.Fatalf("read %s, %+v: %v", topic, r, err)
	}
	return got
}

func payloads(messages []*message.Message) []string {
	list := make([]string, len(messages))
	for i, m := range messages {
		list[i] = string(m.Payload)
	}
	return list
}

func offset(m *message.Message) int64 { return brokers.DeliveryOf(m.Context()).Offset }

func same(t *testing.T, b Broker, topic string) {
	fill(t, b, topic, 5)
	got := read(t, b, topic, brokers.Range{})
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "reader-suite", Topic: topic, Window: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
	}()
	delivered, err := sub.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		var want *message.Message
		select {
		case want = <-delivered:
		case <-time.After(limit):
			t.Fatal("nothing is delivered")
		}
		if i >= len(got) {
			t.Fatalf("%d messages were read, want 5", len(got))
		}
		g, w := *brokers.DeliveryOf(got[i].Context()), *brokers.DeliveryOf(want.Context())
		if got[i].UUID != want.UUID || string(got[i].Payload) != string(want.Payload) || !maps.Equal(got[i].Metadata, want.Metadata) {
			t.Errorf("message %d: read %q %q %v, delivered %q %q %v", i, got[i].UUID, got[i].Payload, got[i].Metadata, want.UUID, want.Payload, want.Metadata)
		}
		if g.Topic != w.Topic || g.Incarnation != w.Incarnation || g.Partition != w.Partition || g.Offset != w.Offset || string(g.Key) != string(w.Key) || !g.Time.Equal(w.Time) {
			t.Errorf("message %d: read at %+v, delivered at %+v", i, g, w)
		}
		want.Ack()
	}
}

func ranges(t *testing.T, b Broker, topic string) {
	p := fill(t, b, topic, 6)
	all := read(t, b, topic, brokers.Range{})
	if len(all) != 6 {
		t.Fatalf("%d messages, want 6", len(all))
	}
	at := func(i int) map[int32]int64 { return map[int32]int64{p: offset(all[i])} }
	for name, tc := range map[string]struct {
		r    brokers.Range
		want []string
	}{
		"from":              {brokers.Range{From: at(4)}, []string{"4", "5"}},
		"to":                {brokers.Range{To: at(2)}, []string{"0", "1"}},
		"one":               {brokers.Range{Partitions: []int32{p}, From: at(3), To: at(4)}, []string{"3"}},
		"empty":             {brokers.Range{From: at(3), To: at(3)}, nil},
		"beyond the end":    {brokers.Range{From: map[int32]int64{p: offset(all[5]) + 1000}}, nil},
		"to beyond the end": {brokers.Range{From: at(5), To: map[int32]int64{p: offset(all[5]) + 1000}}, []string{"5"}},
		"another partition": {brokers.Range{Partitions: []int32{77}}, nil},
		"long ago":          {brokers.Range{Since: time.Now().Add(-time.Hour)}, []string{"0", "1", "2", "3", "4", "5"}},
		"since a message":   {brokers.Range{Since: brokers.DeliveryOf(all[3].Context()).Time.Truncate(time.Millisecond)}, nil},
		"the future":        {brokers.Range{Since: time.Now().Add(time.Hour)}, []string{}},
	} {
		got := payloads(read(t, b, topic, tc.r))
		if name == "since a message" { // several may have been stored in the same moment
			if len(got) < 3 || got[len(got)-1] != "5" {
				t.Errorf("%s: got %q, want 3 to 5 at least", name, got)
			}
			continue
		}
		if !slices.Equal(got, tc.want) && len(got)+len(tc.want) > 0 {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

func ends(t *testing.T, b Broker, topic string) {
	p := fill(t, b, topic, 2)
	before, err := b.Ends(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	err = b.Read(t.Context(), topic, brokers.Range{}, func(m *message.Message) error {
		if len(seen) == 0 {
			fill(t, b, topic, 1) // what comes meanwhile is for the next read
		}
		seen = append(seen, string(m.Payload))
		return nil
	})
	if err != nil || !slices.Equal(seen, []string{"0", "1"}) {
		t.Errorf("read %q, %v; want what was there when it began", seen, err)
	}
	if got := payloads(read(t, b, topic, brokers.Range{From: before})); !slices.Equal(got, []string{"0"}) {
		t.Errorf("from the ends of before, %v of partition %d: %q, want the new one", before, p, got)
	}
}

func nothing(t *testing.T, b Broker, topic string) {
	if err := b.Read(t.Context(), topic, brokers.Range{}, func(*message.Message) error { return nil }); !errors.Is(err, brokers.ErrNoTopic) {
		t.Errorf("Read of no topic: %v, want ErrNoTopic", err)
	}
	if ends, err := b.Ends(t.Context(), topic); !errors.Is(err, brokers.ErrNoTopic) {
		t.Errorf("Ends of no topic: %v, %v, want ErrNoTopic", ends, err)
	}
}

// unseen: a read leaves the position of no consumer behind.
func unseen(t *testing.T, b Broker, topic string) {
	fill(t, b, topic, 3)
	for range 3 {
		if got := read(t, b, topic, brokers.Range{}); len(got) != 3 {
			t.Errorf("%d messages, want 3 each time", len(got))
		}
		for _, m := range read(t, b, topic, brokers.Range{}) {
			m.Ack()
		}
	}
}

func stops(t *testing.T, b Broker, topic string) {
	fill(t, b, topic, 3)
	errStop := errors.New("enough")
	n := 0
	if err := b.Read(t.Context(), topic, brokers.Range{}, func(*message.Message) error { n++; return errStop }); !errors.Is(err, errStop) || n != 1 {
		t.Errorf("fn's error: %v after %d messages", err, n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Read(ctx, topic, brokers.Range{}, func(*message.Message) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}
