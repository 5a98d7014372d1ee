package memory_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/event"
)

func publish(tb testing.TB, b *memory.Broker, topic string, messages ...*message.Message) error {
	tb.Helper()
	pub, err := b.Publisher()
	if err != nil {
		tb.Fatal(err)
	}
	return pub.Publish(topic, messages...)
}

func mustPublish(tb testing.TB, b *memory.Broker, topic string, from, to int) {
	tb.Helper()
	for i := from; i < to; i++ {
		if err := publish(tb, b, topic, message.NewMessage(strconv.Itoa(i), nil)); err != nil {
			tb.Fatal(err)
		}
	}
}

func subscribe(tb testing.TB, b *memory.Broker, consumer, topic string, window int) (message.Subscriber, <-chan *message.Message) {
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

// ids acks the next n messages and returns their ids.
func ids(in <-chan *message.Message, n int) []string {
	var got []string
	for range n {
		m := <-in
		got = append(got, m.UUID)
		m.Ack()
	}
	return got
}

func between(from, to int) []string {
	var s []string
	for i := from; i < to; i++ {
		s = append(s, strconv.Itoa(i))
	}
	return s
}

func TestConfigErrorsNameTheField(t *testing.T) {
	for _, tt := range []struct {
		config memory.Config
		want   string
	}{
		{memory.Config{Partitions: -1}, "Config.Partitions is -1"},
		{memory.Config{Partitions: memory.MaxPartitions + 1}, "Config.Partitions is 1025"},
		{memory.Config{Window: -1}, "Config.Window is -1"},
		{memory.Config{MaxMessages: -1}, "Config.MaxMessages is -1"},
		{memory.Config{History: -2}, "Config.History is -2"},
		{memory.Config{MaxNackDelay: -1}, "Config.MaxNackDelay is -1ns"},
	} {
		if _, err := memory.New(tt.config); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%+v) gave %v, want an error with %q", tt.config, err, tt.want)
		}
	}
}

func TestKeysAreThoseOfEvent(t *testing.T) {
	b := newBroker(t, memory.Config{})
	subject, partition, none := message.NewMessage("", nil), message.NewMessage("", nil), message.NewMessage("", nil)
	subject.Metadata[event.MetaSubject] = "subject"
	partition.Metadata[event.MetaSubject] = "subject"
	partition.Metadata[event.MetaPartitionKey] = "key"
	if err := publish(t, b, "orders", subject, partition, none); err != nil {
		t.Fatal(err)
	}
	_, in := subscribe(t, b, "c", "orders", 3)
	for _, want := range [][]byte{[]byte("subject"), []byte("key"), nil} {
		m := <-in
		if got := brokers.DeliveryOf(m.Context()).Key; string(got) != string(want) || (got == nil) != (want == nil) {
			t.Errorf("Delivery.Key is %q (nil: %v), want %q", got, got == nil, want)
		}
		m.Ack()
	}
}

// R4: what nobody acks must not fill the memory, nor be dropped.
func TestFullTopicRefusesAndDropsNothing(t *testing.T) {
	b := newBroker(t, memory.Config{MaxMessages: 5})
	mustPublish(t, b, "orders", 0, 4)
	err := publish(t, b, "orders", message.NewMessage("4", nil), message.NewMessage("5", nil))
	if !errors.Is(err, memory.ErrFull) || !strings.Contains(err.Error(), `"orders"`) || !strings.Contains(err.Error(), "any consumer") {
		t.Errorf("Publish beyond MaxMessages gave %v, want ErrFull with the topic", err)
	}
	if got := b.Unacked("orders", "c"); got != 4 {
		t.Errorf("%d messages are stored, want 4: the batch is refused as a whole", got)
	}
	sub, in := subscribe(t, b, "slow", "orders", 1)
	mustPublish(t, b, "orders", 4, 5)
	if err := publish(t, b, "orders", message.NewMessage("5", nil)); !errors.Is(err, memory.ErrFull) || !strings.Contains(err.Error(), `"slow"`) {
		t.Errorf("Publish beyond MaxMessages gave %v, want ErrFull that names the consumer", err)
	}
	if got := ids(in, 5); !slices.Equal(got, between(0, 5)) {
		t.Errorf("received %v, want %v", got, between(0, 5))
	}
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, b, "orders", 5, 10)
	if got := b.Unacked("orders", "slow"); got != 5 {
		t.Errorf("Unacked is %d, want 5", got)
	}
}

func TestHistoryIsWhatALaterGroupGets(t *testing.T) {
	for _, tt := range []struct {
		history int
		want    []string
	}{
		{0, between(0, 10)},
		{3, between(7, 10)},
		{memory.NoHistory, nil},
	} {
		b := newBroker(t, memory.Config{History: tt.history})
		mustPublish(t, b, "orders", 0, 10)
		sub, in := subscribe(t, b, "first", "orders", 5)
		ids(in, 10)
		if err := sub.Close(); err != nil {
			t.Fatal(err)
		}
		if got := b.Unacked("orders", "later"); got != len(tt.want) {
			t.Errorf("History %d: a later group would get %d messages, want %d", tt.history, got, len(tt.want))
		}
		_, in = subscribe(t, b, "later", "orders", 5)
		if got := ids(in, len(tt.want)); !slices.Equal(got, tt.want) {
			t.Errorf("History %d: a later group got %v, want %v", tt.history, got, tt.want)
		}
	}
}

func TestKnownGroupGetsAllThoughItStartsLate(t *testing.T) {
	b := newBroker(t, memory.Config{History: memory.NoHistory})
	late, err := b.Subscriber(brokers.Subscription{Consumer: "late", Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	mustPublish(t, b, "orders", 0, 10)
	sub, in := subscribe(t, b, "early", "orders", 5)
	ids(in, 10)
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	in, err = late.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if got := ids(in, 10); !slices.Equal(got, between(0, 10)) {
		t.Errorf("received %v, want %v", got, between(0, 10))
	}
}

// A topic is made again by a new process: fallback ids must not repeat (K11).
func TestK11IncarnationsDiffer(t *testing.T) {
	seen := make(map[string]bool)
	for range 2 {
		b := newBroker(t, memory.Config{})
		mustPublish(t, b, "orders", 0, 1)
		_, in := subscribe(t, b, "c", "orders", 1)
		seen[brokers.DeliveryOf((<-in).Context()).Incarnation] = true
	}
	if len(seen) != 2 || seen[""] {
		t.Errorf("two brokers' topics have the incarnations %v, want two", seen)
	}
}

// Two members must never have deliveries of one partition at once: the same key would run twice.
func TestPartitionChangesHandsOnlyWhenNothingIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := memory.New(memory.Config{Partitions: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		for i := range 20 {
			m := message.NewMessage(strconv.Itoa(i), nil)
			m.Metadata[event.MetaPartitionKey] = strconv.Itoa(i % 8)
			if err := publish(t, b, "orders", m); err != nil {
				t.Fatal(err)
			}
		}
		_, one := subscribe(t, b, "c", "orders", 4)
		held := []*message.Message{<-one, <-one, <-one, <-one}
		_, two := subscribe(t, b, "c", "orders", 20)
		synctest.Wait()
		partitions := make(map[int32]bool)
		for _, m := range held {
			partitions[brokers.DeliveryOf(m.Context()).Partition] = true
		}
		if len(partitions) != 2 {
			t.Fatalf("the first member holds partitions %v, want both", partitions)
		}
		select {
		case m := <-two:
			t.Fatalf("the second member got %s of partition %d, which the first one holds", m.UUID, brokers.DeliveryOf(m.Context()).Partition)
		default:
		}
		for _, m := range held {
			m.Ack()
		}
		got := map[int32]int{}
		for range 16 {
			var m *message.Message
			member := 1
			select {
			case m = <-one:
			case m = <-two:
				member = 2
			}
			p := brokers.DeliveryOf(m.Context()).Partition
			if was := got[p]; was != 0 && was != member {
				t.Errorf("partition %d went to member %d and to member %d", p, was, member)
			}
			got[p] = member
			m.Ack()
		}
		if len(got) != 2 || got[0] == got[1] {
			t.Errorf("partitions are with members %v, want one each", got)
		}
	})
}

// A third member came, and a partition of the second one, which was at its window, became the first one's. Nobody told the
// first one, so a message that waited there rested until something else was published.
func TestNewMemberWakesTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := memory.New(memory.Config{Partitions: 4})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		_, first := subscribe(t, b, "c", "orders", 1)
		_, second := subscribe(t, b, "c", "orders", 1)
		get := func(in <-chan *message.Message, partition int32) *message.Message {
			t.Helper()
			synctest.Wait()
			select {
			case m := <-in:
				if got := brokers.DeliveryOf(m.Context()).Partition; got != partition {
					t.Fatalf("got message %s of partition %d, want one of partition %d", m.UUID, got, partition)
				}
				return m
			default:
				t.Fatalf("the message of partition %d does not come", partition)
				return nil
			}
		}
		mustPublish(t, b, "orders", 0, 1) // without keys they go to partitions 1, 2 and 3
		held := get(second, 1)
		mustPublish(t, b, "orders", 1, 3)
		get(first, 2).Ack()
		synctest.Wait()
		subscribe(t, b, "c", "orders", 1)
		synctest.Wait()
		held.Ack()
		get(first, 3).Ack()
	})
}

func TestNackDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := memory.New(memory.Config{MaxNackDelay: 5 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		mustPublish(t, b, "orders", 0, 1)
		_, in := subscribe(t, b, "c", "orders", 1)
		var got []time.Duration
		for range 6 {
			begin := time.Now()
			(<-in).Nack()
			got = append(got, time.Since(begin))
		}
		ms := time.Millisecond
		if want := []time.Duration{0, 0, ms, 2 * ms, 4 * ms, 5 * ms}; !slices.Equal(got, want) {
			t.Errorf("deliveries came after %v, want %v", got, want)
		}
	})
}

// Nothing runs for a subscription that is idle or waits for one slow handler.
func TestIdleCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		_, in := subscribe(t, b, "c", "orders", 4)
		mustPublish(t, b, "orders", 0, 1)
		m := <-in
		begin := time.Now()
		time.Sleep(24 * time.Hour) // instant, unless a timer runs
		if err := m.Context().Err(); err != nil {
			t.Errorf("the message's context has ended after %v: %v", time.Since(begin), err)
		}
		m.Ack()
	})
}

func TestAcksOutOfOrderFreeTheTopic(t *testing.T) {
	b := newBroker(t, memory.Config{MaxMessages: 4})
	mustPublish(t, b, "orders", 0, 4)
	_, in := subscribe(t, b, "c", "orders", 4)
	held := []*message.Message{<-in, <-in, <-in, <-in}
	for _, i := range []int{2, 0, 3} {
		held[i].Ack()
		<-held[i].Context().Done()
	}
	if got := b.Unacked("orders", "c"); got != 1 {
		t.Errorf("Unacked is %d, want 1", got)
	}
	mustPublish(t, b, "orders", 4, 5) // the place of 0; those of 2 and 3 are behind 1
	if err := publish(t, b, "orders", message.NewMessage("x", nil)); !errors.Is(err, memory.ErrFull) {
		t.Errorf("Publish gave %v, want ErrFull", err)
	}
	held[1].Ack()
	<-held[1].Context().Done()
	mustPublish(t, b, "orders", 5, 8)
	if got := ids(in, 4); !slices.Equal(got, between(4, 8)) {
		t.Errorf("received %v, want %v", got, between(4, 8))
	}
}

// A message that nobody has received was not delivered: a count would make it suspect.
func TestMessageThatNobodyReadIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		mustPublish(t, b, "orders", 0, 2)
		sub, in := subscribe(t, b, "c", "orders", 2)
		<-in
		synctest.Wait() // it offers the next one now
		if err := sub.Close(); err != nil {
			t.Fatal(err)
		}
		_, in = subscribe(t, b, "c", "orders", 2)
		for i, want := range []int{2, 1} {
			if got := brokers.DeliveryOf((<-in).Context()).Count; got != want {
				t.Errorf("message %d: Delivery.Count is %d, want %d", i, got, want)
			}
		}
	})
}

func TestSubscriberOfOneTopicRefusesAnother(t *testing.T) {
	b := newBroker(t, memory.Config{})
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "c", Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sub.Subscribe(t.Context(), "payments"); err == nil || !strings.Contains(err.Error(), `"payments"`) {
		t.Errorf("Subscribe to another topic gave %v", err)
	}
}

func Example() {
	broker, err := memory.New(memory.Config{})
	if err != nil {
		panic(err)
	}
	defer broker.Close()
	pub, err := broker.Publisher()
	if err != nil {
		panic(err)
	}
	if err := pub.Publish("orders", message.NewMessage("order-1", []byte("hello"))); err != nil {
		panic(err)
	}
	for _, consumer := range []string{"billing", "shipping"} {
		sub, err := broker.Subscriber(brokers.Subscription{Consumer: consumer, Topic: "orders"})
		if err != nil {
			panic(err)
		}
		messages, err := sub.Subscribe(context.Background(), "orders")
		if err != nil {
			panic(err)
		}
		m := <-messages
		m.Nack()
		m = <-messages
		fmt.Println(consumer, m.UUID, "delivery", brokers.DeliveryOf(m.Context()).Count)
		m.Ack()
	}
	// Output:
	// billing order-1 delivery 2
	// shipping order-1 delivery 2
}
