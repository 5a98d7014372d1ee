package pulsar_test

import (
	"crypto/rand"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"

	"github.com/headrace-go/headrace/brokers/pulsar"
)

// A delayed message is sent again. It must come as it was, and not before its time, also where the server sends it at once: it does so with
// what is due within its delayedDeliveryTickTimeMillis, a second.
func TestDelayedDeliveryIsWhatItWas(t *testing.T) {
	b := open(t, pulsar.Config{})
	topic := rand.Text()
	_, in := subscribe(t, b, "c", topic, 2)
	send(t, topic, pulsarclient.ProducerOptions{DisableBatching: true}, &pulsarclient.ProducerMessage{
		Payload: []byte("\xff\x00"), Key: "key", OrderingKey: "\xfe",
		Properties: map[string]string{"k": "v", "headrace-wire": "m.%FF=x&uuid=%FE"},
	})
	m := next(t, in)
	before, metadata := *delivery(t, m), maps.Clone(m.Metadata)
	copy(m.Payload, "xx") // a handler's own business
	for i, delay := range []time.Duration{1200 * time.Millisecond, 1200 * time.Millisecond, 300 * time.Millisecond} {
		began := time.Now()
		if !delivery(t, m).Delay(delay) {
			t.Fatal("Delay() = false")
		}
		m = next(t, in)
		d := delivery(t, m)
		if took := time.Since(began); took < delay {
			t.Errorf("it came after %v, want at least %v", took, delay)
		}
		if string(m.Payload) != "\xff\x00" || m.UUID != "\xfe" || !maps.Equal(m.Metadata, metadata) || string(d.Key) != "\xfe" ||
			d.Topic != topic || d.Offset != before.Offset || d.Partition != before.Partition || !d.Time.Equal(before.Time) || d.DecodeError != nil {
			t.Errorf("after delay %d: %q %q %v, %+v; want what it was, %v, %+v", i+1, m.UUID, m.Payload, m.Metadata, d, metadata, before)
		}
	}
	m.Ack()
	quiet(t, in)
}

// A delay is asked for and the process stops at once: it is not forgotten.
func TestDelayAtTheEndIsKept(t *testing.T) {
	b := open(t, pulsar.Config{})
	topic := rand.Text()
	sub, in := subscribe(t, b, "c", topic, 1)
	publish(t, b, topic, numbered("key", 0, 1)...)
	began := time.Now()
	const delay = 1500 * time.Millisecond
	if !delivery(t, next(t, in)).Delay(delay) {
		t.Error("Delay() = false")
	}
	if err := sub.Close(); err != nil {
		t.Error(err)
	}
	_, in = subscribe(t, b, "c", topic, 1)
	m := next(t, in)
	if took := time.Since(began); took < delay || string(m.Payload) != "0" {
		t.Errorf("%q came after %v, want 0 after %v", m.Payload, took, delay)
	}
	m.Ack()
	quiet(t, in)
}

// The topic of delayed messages cannot be had: then the message waits here.
func TestDelayThatCannotBeStoredIsKeptHere(t *testing.T) {
	topic := rand.Text()
	var subscribed atomic.Bool
	b := open(t, pulsar.Config{DelayTopic: func(topic, _ string) string {
		if subscribed.Swap(true) {
			return "persistent://no/topic"
		}
		return topic + "-later"
	}})
	_, in := subscribe(t, b, "c", topic, 2)
	publish(t, b, topic, numbered("key", 0, 2)...)
	began := time.Now()
	const delay = 300 * time.Millisecond
	if !delivery(t, next(t, in)).Delay(delay) {
		t.Error("Delay() = false")
	}
	if got := ack(t, in, 1); got[0] != "1" {
		t.Errorf("got %q, want 1 while 0 is delayed", got)
	}
	m := next(t, in)
	if took := time.Since(began); took < delay || string(m.Payload) != "0" {
		t.Errorf("%q came after %v, want 0 after %v", m.Payload, took, delay)
	}
	m.Ack()
	quiet(t, in)
}
