package pulsar_test

import (
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/pulsar"
	"github.com/headrace-go/headrace/classify"
)

// What is held of a key keeps the key with its member, however much room the other has.
func TestKeyIsOneMembersWhileItHoldsSomething(t *testing.T) {
	const keys, each = 20, 5
	b := open(t, pulsar.Config{})
	topic := rand.Text()
	_, first := subscribe(t, b, "c", topic, keys*each)
	_, second := subscribe(t, b, "c", topic, keys*each)
	for i := range each {
		var all []*message.Message
		for k := range keys {
			all = append(all, numbered("key"+strconv.Itoa(k), i, 1)...)
		}
		publish(t, b, topic, all...)
	}
	of, count := map[string]string{}, map[string]int{}
	for n := range keys * each {
		var m *message.Message
		var member string
		select {
		case m = <-first:
			member = "first"
		case m = <-second:
			member = "second"
		case <-time.After(wait):
			t.Fatalf("no message in %v, after %d: %v", wait, n, count)
		}
		key := m.Metadata["ce_partitionkey"]
		if before, there := of[key]; there && before != member {
			t.Errorf("%s of %s came to the %s member while the %s one holds some", m.Payload, key, member, before)
		}
		of[key] = member
		count[member]++
	}
	if count["first"] == 0 || count["second"] == 0 {
		t.Errorf("messages came %v, want some to each", count)
	}
}

// Two members share the keys. One goes in the middle: the other goes on where it was, key by key.
func TestOrderOfKeysOverTwoMembers(t *testing.T) {
	const keys, each = 20, 30
	b := open(t, pulsar.Config{})
	topic := rand.Text()
	sub, first := subscribe(t, b, "c", topic, 8)
	_, second := subscribe(t, b, "c", topic, 8)
	for i := range each {
		var all []*message.Message
		for k := range keys {
			all = append(all, numbered("key"+strconv.Itoa(k), i, 1)...)
		}
		publish(t, b, topic, all...)
	}
	got, from := map[string][]string{}, map[string]int{}
	for n := range keys * each {
		var m *message.Message
		select {
		case m = <-first:
			from["first"]++
		case m = <-second:
			from["second"]++
		case <-time.After(wait):
			t.Fatalf("no message in %v, after %d: %v", wait, n, from)
		}
		key := m.Metadata["ce_partitionkey"]
		got[key] = append(got[key], string(m.Payload))
		m.Ack()
		if n == keys*each/3 {
			if err := sub.Close(); err != nil {
				t.Error(err)
			}
			first = nil
		}
	}
	for key, payloads := range got {
		if want := upTo(each); !slices.Equal(payloads, want) {
			t.Errorf("%s: %q, want %q", key, payloads, want)
		}
	}
	if from["first"] == 0 || from["second"] == 0 {
		t.Errorf("messages came %v, want some to each", from)
	}
	quiet(t, second)
}

func TestPartitionsAreReadAndNewOnesFound(t *testing.T) {
	topic := rand.Text()
	admin(t, "PUT", topic+"/partitions", "2")
	b := open(t, pulsar.Config{PartitionInterval: 100 * time.Millisecond})
	_, in := subscribe(t, b, "c", topic, 40)
	partitions := map[int32]bool{}
	read := func(n int) {
		seen := map[string]int32{}
		for range n {
			m := next(t, in)
			key, p := m.Metadata["ce_partitionkey"], delivery(t, m).Partition
			if before, there := seen[key]; there && before != p {
				t.Errorf("%s is in partition %d and %d", key, before, p)
			}
			seen[key], partitions[p] = p, true
			m.Ack()
		}
	}
	var all []*message.Message
	for k := range 16 {
		all = append(all, numbered("key"+strconv.Itoa(k), 0, 2)...)
	}
	publish(t, b, topic, all...)
	read(len(all))
	if len(partitions) != 2 {
		t.Errorf("partitions %v, want two", partitions)
	}
	admin(t, "POST", topic+"/partitions", "4")
	publish(t, open(t, pulsar.Config{}), topic, all...) // a producer that knows the new ones
	read(len(all))
	if len(partitions) != 4 {
		t.Errorf("partitions %v, want four", partitions)
	}
	quiet(t, in)
}

func TestRegisterMakesTheSubscriptions(t *testing.T) {
	b := open(t, pulsar.Config{})
	topic := rand.Text()
	if err := b.Register(t.Context(), topic, "one", "two"); err != nil {
		t.Fatal(err)
	}
	if got := admin(t, "GET", topic+"/subscriptions", ""); !strings.Contains(got, `"one"`) || !strings.Contains(got, `"two"`) {
		t.Errorf("the topic has the subscriptions %s, want one and two", got)
	}
}

func TestPublishErrorNamesTheMessage(t *testing.T) {
	b := open(t, pulsar.Config{MaxMessageBytes: 2000})
	topic := rand.Text()
	_, in := subscribe(t, b, "c", topic, 4)
	all := numbered("key", 0, 3)
	all[1].Payload = make([]byte, 3000)
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	err = pub.Publish(topic, all...)
	failed, ok := errors.AsType[*brokers.PublishError](err)
	if !ok || len(failed.Failed) != 1 || failed.Failed[0].Index != 1 || failed.Failed[0].UUID != "key-1" || failed.Of != 3 {
		t.Fatalf("Publish: %v, want a PublishError of the second message", err)
	}
	if v := (*classify.Classifier)(nil).Classify(failed.Failed[0].Err).Verdict; v != classify.VerdictPoison {
		t.Errorf("the error is judged %v, want poison: no other try can help", v)
	}
	if got, want := ack(t, in, 2), []string{"0", "2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A topic is terminated: nothing can be published to it, which its error says, and each call says it again. (A producer that was there before
// leaves a goroutine of the client's behind.)
func TestPublishToATerminatedTopicFails(t *testing.T) {
	b := open(t, pulsar.Config{})
	topic := rand.Text()
	if err := b.Register(t.Context(), topic, "c"); err != nil {
		t.Fatal(err)
	}
	admin(t, "POST", topic+"/terminate", "")
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := pub.Publish(topic, numbered("key", 1, 1)...); err == nil || errors.Is(err, pulsar.ErrUnconfirmed) {
			t.Errorf("Publish to a terminated topic: %v, want the server's error", err)
		}
	}
}

func TestLargeMessagesArrive(t *testing.T) {
	b := open(t, pulsar.Config{})
	topic := rand.Text()
	_, in := subscribe(t, b, "c", topic, 4)
	all := numbered("key", 0, 3)
	for i, size := range []int{1 << 20, 4 << 20, 1} {
		all[i].Payload = make([]byte, size)
		_, _ = rand.Read(all[i].Payload)
	}
	publish(t, b, topic, all...)
	for i := range all {
		if m := next(t, in); !m.Equals(all[i]) {
			t.Errorf("message %d differs: %d bytes, want %d", i, len(m.Payload), len(all[i].Payload))
		} else {
			m.Ack()
		}
	}
}

// Producers are as many as Config.MaxProducers says: those unused for longest go.
func TestProducersAreBounded(t *testing.T) {
	b := open(t, pulsar.Config{MaxProducers: 2})
	topic := rand.Text()
	for i := range 5 {
		name := topic + strconv.Itoa(i)
		publish(t, b, name, numbered("key", 0, 1)...)
		for j := range i + 1 {
			if stats := admin(t, "GET", topic+strconv.Itoa(j)+"/stats", ""); j > i-2 && !strings.Contains(stats, `"producerName"`) {
				t.Errorf("after topic %d, topic %d has no producer", i, j)
			}
		}
	}
	deadline := time.Now().Add(wait)
	for strings.Contains(admin(t, "GET", topic+"0/stats", ""), `"producerName"`) {
		if time.Now().After(deadline) {
			t.Fatal("the first topic has its producer still")
		}
	}
}
