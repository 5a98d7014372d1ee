package pulsar_test

import (
	"crypto/rand"
	"slices"
	"strconv"
	"testing"
	"time"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"

	"github.com/headrace-go/headrace/brokers/pulsar"
)

// sendBatch sends n messages of one key as one entry, however slow the machine is.
func sendBatch(tb testing.TB, topic string, n int) {
	tb.Helper()
	all := make([]*pulsarclient.ProducerMessage, n)
	for i := range all {
		all[i] = &pulsarclient.ProducerMessage{Payload: []byte(strconv.Itoa(i)), Key: "key"}
	}
	send(tb, topic, pulsarclient.ProducerOptions{BatchingMaxPublishDelay: time.Hour}, all...)
}

// A batch is one entry of the server's. One message of it can be given back only with those that are still at work here.
func TestReleasedMessageOfABatchWaitsForTheOthers(t *testing.T) {
	b := open(t, pulsar.Config{})
	topic := rand.Text()
	_, in := subscribe(t, b, "c", topic, 4)
	sendBatch(t, topic, 4)
	first, second, third, fourth := next(t, in), next(t, in), next(t, in), next(t, in)
	delivery(t, second).Release()
	ends(t, second)
	first.Ack()
	third.Ack()
	quiet(t, in) // the fourth would come as well
	fourth.Ack()
	if got, want := ack(t, in, 1), []string{"1"}; !slices.Equal(got, want) {
		t.Errorf("after the release: %q, want %q", got, want)
	}
	quiet(t, in)
}

// The connection is lost in the middle of a batch. The server sends all of it again; what was acked is not handed over.
func TestWhatWasAckedOfABatchIsNotHandedOverAgain(t *testing.T) {
	b := open(t, pulsar.Config{})
	topic := rand.Text()
	_, in := subscribe(t, b, "c", topic, 6)
	sendBatch(t, topic, 6)
	for i := range 6 {
		if m := next(t, in); i%2 == 0 {
			m.Ack()
			ends(t, m)
		}
	}
	admin(t, "PUT", topic+"/unload", "")
	if got, want := ack(t, in, 3), []string{"1", "3", "5"}; !slices.Equal(got, want) {
		t.Errorf("after the batch came again: %q, want %q", got, want)
	}
	quiet(t, in)
	admin(t, "PUT", topic+"/unload", "")
	quiet(t, in) // all was acked, also at the server
}

// The messages of one call of Publish are batches by key, which the server can give to different members.
func TestBatchesHaveOneKeyEach(t *testing.T) {
	b := open(t, pulsar.Config{Batched: true})
	topic := rand.Text()
	_, in := subscribe(t, b, "c", topic, 12)
	all := slices.Concat(numbered("a", 0, 3), numbered("b", 0, 3), numbered("c", 0, 3))
	publish(t, b, topic, all...)
	entries := map[int64]string{}
	for range 9 {
		m := next(t, in)
		entry, key := delivery(t, m).Offset>>10, m.Metadata["ce_partitionkey"]
		if before, there := entries[entry]; there && before != key {
			t.Errorf("one entry has the keys %q and %q", before, key)
		}
		entries[entry] = key
		m.Ack()
	}
	if n := len(entries); n < 3 || n >= len(all) { // on a slow machine a batch is sent before it is full
		t.Errorf("there are %d entries, want 3: one for each key", n)
	}
}

// Another program's batch has messages of many keys, and its own idea of properties.
func TestBatchOfAnotherProgramArrives(t *testing.T) {
	b := open(t, pulsar.Config{})
	topic := rand.Text()
	_, in := subscribe(t, b, "c", topic, 4)
	send(t, topic, pulsarclient.ProducerOptions{},
		&pulsarclient.ProducerMessage{Payload: []byte("0"), Key: "a"},
		&pulsarclient.ProducerMessage{Payload: []byte("1"), Key: "b", Properties: map[string]string{"k": "v"}},
		&pulsarclient.ProducerMessage{Payload: []byte{}},
	)
	for _, want := range []struct{ payload, key, k string }{{"0", "a", ""}, {"1", "b", "v"}, {"", "", ""}} {
		m := next(t, in)
		d := delivery(t, m)
		if string(m.Payload) != want.payload || string(d.Key) != want.key || m.Metadata["k"] != want.k || m.UUID != "" || d.DecodeError != nil {
			t.Errorf("got %q of key %q, metadata %v, id %q, %v; want %+v", m.Payload, d.Key, m.Metadata, m.UUID, d.DecodeError, want)
		}
		if (d.Key == nil) != (want.key == "") {
			t.Errorf("the key of %q is %q (nil: %t)", m.Payload, d.Key, d.Key == nil)
		}
		m.Ack()
	}
	quiet(t, in)
}
