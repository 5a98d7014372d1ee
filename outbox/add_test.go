package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/outbox"
)

// rowWriter keeps what it is given.
type rowWriter struct {
	rows []outbox.Row
	err  error
}

func (w *rowWriter) InsertOutbox(_ context.Context, _ string, rows []outbox.Row) error {
	w.rows = append(w.rows, rows...)
	return w.err
}

// The buckets are a contract between writers and relays of all versions.
func TestBucketsAreFrozen(t *testing.T) {
	for key, want := range map[string]int{
		"": 37, "a": 12, "order-1": 45, "order-2": 20, "0190c6f4-5f3c-7cc0-8b1d-2f6a3b1c9d10": 35, "clé ☃": 49,
	} {
		h := fnv.New64a()
		h.Write([]byte(key))
		if ref := int(h.Sum64() % 64); outbox.BucketOf(key) != ref {
			t.Errorf("BucketOf(%q): got %d, hash/fnv says %d", key, outbox.BucketOf(key), ref)
		}
		if got := outbox.BucketOf(key); got != want {
			t.Errorf("BucketOf(%q): got %d, want %d", key, got, want)
		}
	}
	if outbox.Buckets != 64 {
		t.Errorf("Buckets: got %d, want 64", outbox.Buckets)
	}
}

func TestKeyIsPartitionKeyThenSubject(t *testing.T) {
	for _, test := range []struct {
		metadata message.Metadata
		key      string
		bucket   int
	}{
		{message.Metadata{"ce_partitionkey": "p", "ce_subject": "s"}, "p", outbox.BucketOf("p")},
		{message.Metadata{"ce_subject": "s"}, "s", outbox.BucketOf("s")},
		{message.Metadata{"ce_partitionkey": "", "ce_subject": "s"}, "s", outbox.BucketOf("s")},
		{message.Metadata{"content-type": "application/cloudevents+json"}, "structured", outbox.BucketOf("structured")},
		{nil, "", outbox.BucketOf("id")}, // spread by the id
	} {
		w := &rowWriter{}
		msg := message.NewMessage("id", []byte(`{"partitionkey":"structured"}`))
		msg.Metadata = test.metadata
		if err := outbox.Add(t.Context(), w, "tx", "orders", msg); err != nil {
			t.Fatalf("%v: %v", test.metadata, err)
		}
		if r := w.rows[0]; r.Key != test.key || r.Bucket != test.bucket {
			t.Errorf("%v: got key %q, bucket %d; want %q, %d", test.metadata, r.Key, r.Bucket, test.key, test.bucket)
		}
	}
}

func TestAddRefusesWhatCannotBeKept(t *testing.T) {
	valid := func(change func(*message.Message)) *message.Message {
		msg := message.NewMessage("id", nil)
		change(msg)
		return msg
	}
	set := func(k, v string) func(*message.Message) {
		return func(m *message.Message) { m.Metadata[k] = v }
	}
	for _, test := range []struct {
		name  string
		topic string
		msg   *message.Message
		says  string
	}{
		{"empty topic", "", valid(func(*message.Message) {}), "topic is empty"},
		{"long topic", strings.Repeat("t", 256), valid(func(*message.Message) {}), "of 256 bytes, at most 255"},
		{"topic with NUL", "a\x00b", valid(func(*message.Message) {}), "NUL"},
		{"topic of bytes", "\xff", valid(func(*message.Message) {}), "UTF-8"},
		{"nil message", "t", nil, "nil message"},
		{"no UUID", "t", valid(func(m *message.Message) { m.UUID = "" }), "UUID is empty"},
		{"long UUID", "t", valid(func(m *message.Message) { m.UUID = strings.Repeat("u", 256) }), "UUID"},
		{"long key", "t", valid(set("ce_partitionkey", strings.Repeat("k", 1025))), "key"},
		{"key of bytes", "t", valid(set("ce_subject", "\xff")), "key"},
		{"metadata of bytes", "t", valid(set("x", "\xff")), `metadata "x"`},
		{"much metadata", "t", valid(set("x", strings.Repeat("x", 64<<10))), "metadata of 65537 bytes, at most 65536"},
		{"large payload", "t", valid(func(m *message.Message) { m.Payload = make([]byte, outbox.MaxPayloadBytes+1) }), "payload of 16777217 bytes"},
	} {
		w := &rowWriter{}
		err := outbox.Add(t.Context(), w, "tx", test.topic, message.NewMessage("good", nil), test.msg)
		if !errors.Is(err, outbox.ErrInvalid) || !strings.Contains(fmt.Sprint(err), test.says) {
			t.Errorf("%s: got %v, want ErrInvalid that says %q", test.name, err, test.says)
		}
		if len(w.rows) > 0 {
			t.Errorf("%s: %d rows were inserted, want none", test.name, len(w.rows))
		}
	}
	if err := outbox.Add(t.Context(), &rowWriter{}, "tx", "t", make([]*message.Message, outbox.MaxMessages+1)...); !errors.Is(err, outbox.ErrInvalid) {
		t.Errorf("too many messages: got %v, want ErrInvalid", err)
	}
	if err := outbox.AddAt(t.Context(), &rowWriter{}, "tx", time.Time{}, "t"); !errors.Is(err, outbox.ErrInvalid) {
		t.Errorf("zero time: got %v, want ErrInvalid", err)
	}
	broken := errors.New("connection lost")
	if err := outbox.Add(t.Context(), &rowWriter{err: broken}, "tx", "t", message.NewMessage("id", nil)); !errors.Is(err, broken) || errors.Is(err, outbox.ErrInvalid) {
		t.Errorf("database error: got %v, want it wrapped and not ErrInvalid", err)
	}
}

func TestAddStampsWhatTheContextKnows(t *testing.T) {
	trigger := message.NewMessage("cause", nil)
	f := &flight.Flight{Context: t.Context(), Original: trigger, Delivery: &brokers.Delivery{}, ID: "cause", CorrelationID: "corr", CausationID: "cause"}
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	ctx := trace.ContextWithSpanContext(f, sc)

	plain := message.NewMessage("1", nil)
	own := message.NewMessage("2", nil)
	own.Metadata = message.Metadata{
		event.MetaCorrelationID: "own", event.MetaCausationID: "own cause",
		event.MetaTraceParent: "00-0a000000000000000000000000000000-0b00000000000000-01",
	}
	before := maps.Clone(own.Metadata)
	w := &rowWriter{}
	if err := outbox.Add(ctx, w, "tx", "t", plain, own); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		event.MetaCorrelationID: event.CorrelationID(ctx), event.MetaCausationID: event.CausationID(ctx),
		event.MetaTraceParent: "00-01000000000000000000000000000000-0200000000000000-01",
	}
	if want[event.MetaCorrelationID] != "corr" || want[event.MetaCausationID] == "" {
		t.Fatalf("the context has %v", want)
	}
	if !maps.Equal(w.rows[0].Metadata, want) {
		t.Errorf("stamped: got %v, want %v", w.rows[0].Metadata, want)
	}
	if !maps.Equal(w.rows[1].Metadata, before) {
		t.Errorf("with its own: got %v, want %v", w.rows[1].Metadata, before)
	}
	if len(plain.Metadata) != 0 || !maps.Equal(own.Metadata, before) {
		t.Errorf("the caller's messages were changed: %v, %v", plain.Metadata, own.Metadata)
	}
}

func BenchmarkAdd(b *testing.B) {
	msg := message.NewMessage("0190c6f4-5f3c-7cc0-8b1d-2f6a3b1c9d10", make([]byte, 256))
	msg.Metadata = message.Metadata{
		event.MetaType: "order.placed", event.MetaSource: "billing", event.MetaSubject: "order-1",
		event.MetaCorrelationID: "c", event.MetaCausationID: "d",
	}
	w := discardWriter{}
	b.ReportAllocs()
	for b.Loop() {
		if err := outbox.Add(b.Context(), w, "tx", "orders", msg); err != nil {
			b.Fatal(err)
		}
	}
}

type discardWriter struct{}

func (discardWriter) InsertOutbox(context.Context, string, []outbox.Row) error { return nil }
