package amqp_test

import (
	"bytes"
	"crypto/rand"
	"maps"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/internal/testserver"
)

// A delayed message is sent again. It must come as it was, whatever its headers, and count on.
func TestDelayedDeliveryIsWhatItWas(t *testing.T) {
	b := open(t, amqp.Config{})
	topic := rand.Text()
	_, in := adaptertest.Subscribe(t, b, "c", topic, 1)
	sent := amqp091.Publishing{
		MessageId: "id", ContentType: "text/plain", CorrelationId: "corr", Timestamp: time.Unix(1700000000, 0), Body: []byte("payload"),
		Headers: amqp091.Table{
			"text": "a", "number": int32(-5), "x-death": []any{amqp091.Table{"queue": "q", "count": int64(3)}}, "x-first-death-queue": "q",
			"table": amqp091.Table{"yes": true, "bytes": []byte{0, 255}},
		},
	}
	if err := channel(t, testserver.AMQP(t)).Publish(topic, "", true, false, sent); err != nil {
		t.Fatal(err)
	}
	first := adaptertest.Next(t, in)
	before := adaptertest.Delivery(t, first)
	metadata := maps.Clone(first.Metadata)
	first.Nack()
	second := adaptertest.Next(t, in)
	copy(second.Payload, "PAYLOAD") // a handler's own business
	if d := adaptertest.Delivery(t, second); d.Count != 2 || !d.Delay(time.Millisecond) {
		t.Fatalf("Count is %d, want 2; or Delay() is false", d.Count)
	}
	m := adaptertest.Next(t, in)
	d := adaptertest.Delivery(t, m)
	if d.Count != 3 || m.UUID != "id" || string(m.Payload) != "payload" || !maps.Equal(m.Metadata, metadata) || !d.Time.Equal(before.Time) {
		t.Errorf("after the delay: delivery %d, %q %q %v, of %v; want the third, id payload %v, of %v",
			d.Count, m.UUID, m.Payload, m.Metadata, d.Time, metadata, before.Time)
	}
	if len(d.Headers) != len(before.Headers) {
		t.Fatalf("headers %v, want %v", d.Headers, before.Headers)
	}
	for i, h := range before.Headers {
		if d.Headers[i].Key != h.Key || !bytes.Equal(d.Headers[i].Value, h.Value) {
			t.Errorf("header %q=%q, want %q=%q", d.Headers[i].Key, d.Headers[i].Value, h.Key, h.Value)
		}
	}
	m.Nack() // its count goes on
	m = adaptertest.Next(t, in)
	if got := adaptertest.Delivery(t, m).Count; got != 4 {
		t.Errorf("Count is %d after a nack, want 4", got)
	}
	m.Ack()
	adaptertest.Quiet(t, in, quiet)
}

// A delay that is longer than all levels together is waited for in several goes. What is left comes with the message.
func TestLongDelayGoesOnAtItsReturn(t *testing.T) {
	b := open(t, amqp.Config{})
	topic := rand.Text()
	_, in := adaptertest.Subscribe(t, b, "c", topic, 1)
	began := time.Now()
	const left = 400 * time.Millisecond
	if err := channel(t, testserver.AMQP(t)).Publish("", topic+"/c", true, false, amqp091.Publishing{
		Headers: amqp091.Table{"headrace-delay": amqp091.Table{"count": int64(7), "left": left.Milliseconds(), "exchange": topic}},
		Body:    []byte("x"),
	}); err != nil {
		t.Fatal(err)
	}
	m := adaptertest.Next(t, in)
	if took, d := time.Since(began), adaptertest.Delivery(t, m); took < left || d.Count != 8 || len(d.Headers) != 0 {
		t.Errorf("delivery %d with headers %v after %v; want the eighth, none, after %v", d.Count, d.Headers, took, left)
	}
	m.Ack()
}

// A delay is asked for and the process stops at once: it is not forgotten.
func TestDelayAtTheEndIsKept(t *testing.T) {
	b := open(t, amqp.Config{})
	topic := rand.Text()
	sub, in := adaptertest.Subscribe(t, b, "c", topic, 1)
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 1)...)
	began := time.Now()
	const delay = time.Second
	if !adaptertest.Delivery(t, adaptertest.Next(t, in)).Delay(delay) {
		t.Error("Delay() = false")
	}
	if err := sub.Close(); err != nil {
		t.Error(err)
	}
	_, in = adaptertest.Subscribe(t, b, "c", topic, 1)
	m := adaptertest.Next(t, in)
	if took, d := time.Since(began), adaptertest.Delivery(t, m); took < delay || d.Count != 2 {
		t.Errorf("delivery %d after %v, want the second after %v", d.Count, took, delay)
	}
	m.Ack()
}

// The server is away when a delay is asked for, and the delivery with it: it comes again.
func TestDelayWithoutAServerLosesNothing(t *testing.T) {
	p, url := testserver.NewProxyOf(t, testserver.AMQP(t))
	b := open(t, amqp.Config{URLs: []string{url}})
	topic := rand.Text()
	_, in := adaptertest.Subscribe(t, b, "c", topic, 1)
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 1)...)
	m := adaptertest.Next(t, in)
	p.Down()
	adaptertest.Delivery(t, m).Delay(50 * time.Millisecond)
	p.Up()
	m = adaptertest.Next(t, in)
	if d := adaptertest.Delivery(t, m); string(m.Payload) != "0" || d.Count != 2 {
		t.Errorf("got %q, delivery %d; want 0, the second", m.Payload, d.Count)
	}
	m.Ack()
}
