package event_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
)

func typical() *message.Message {
	return delivered(binary(`{"id":"a-1","amount":1250}`,
		"ce_id", "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "ce_time", "2026-02-03T04:05:06.789Z", "content-type", "application/json",
		"ce_schemaversion", "1", "ce_correlationid", "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "ce_causationid", "1", "traceparent", "00-1-2-01"),
		&brokers.Delivery{Topic: "orders", Incarnation: "abc", Offset: 7})
}

// Routing and identifying are done for every message, wanted or not.
func TestHotPathAllocations(t *testing.T) {
	msg, plain := typical(), withUUID(received("x"), "u")
	for name, tt := range map[string]struct {
		want float64
		fn   func()
	}{
		"TypeOf":            {0, func() { _, _ = event.TypeOf(msg) }},
		"TypeOf, plain":     {0, func() { _, _ = event.TypeOf(plain) }},
		"KeyOf":             {0, func() { event.KeyOf(msg) }},
		"Identify":          {1, func() { _, _ = event.Identify(msg, "orders") }},
		"Identify, by UUID": {1, func() { _, _ = event.Identify(plain, "orders") }},
		"Parse":             {0, func() { _, _ = event.Parse(msg) }},
		"Parse, plain":      {0, func() { _, _ = event.Parse(plain) }},
	} {
		if got := testing.AllocsPerRun(100, tt.fn); got > tt.want {
			t.Errorf("%s: got %v allocations, want at most %v", name, got, tt.want)
		}
	}
}

func BenchmarkTypeOf(b *testing.B) {
	big := structured(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":` + string(webhooks(b)[2].Payload) + `}`)
	for name, msg := range map[string]*message.Message{"binary": typical(), "structured": big} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := event.TypeOf(msg); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkIdentify(b *testing.B) {
	for name, msg := range map[string]*message.Message{
		"binary":   typical(),
		"uuid":     withUUID(received("x"), "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"),
		"position": delivered(received("x"), &brokers.Delivery{Topic: "orders", Incarnation: "abc", Offset: 7}),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := event.Identify(msg, "orders"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	big := structured(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":` + string(webhooks(b)[2].Payload) + `}`)
	for name, msg := range map[string]*message.Message{
		"plain": received("x"), "binary": typical(), fmt.Sprintf("structured/%dB", len(big.Payload)): big,
		"structured/small": structured(`{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"2026-02-03T04:05:06Z","data":{"id":"a-1","amount":1250}}`),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(msg.Payload)))
			for b.Loop() {
				if _, err := event.Parse(msg); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDecode is to be read against encoding/json, which is part of it.
func BenchmarkDecode(b *testing.B) {
	msg := typical()
	b.Run("encoding/json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var o order
			if err := json.Unmarshal(msg.Payload, &o); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("DecodeData", func(b *testing.B) {
		e, err := event.Parse(msg)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := event.DecodeData[order](nil, &e); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := event.Decode[order](nil, msg); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkNew(b *testing.B) {
	f := handling(typical())
	b.Run("handler", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := event.New(f, "invoice.created", order{"a", 5}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("outside", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := event.New(b.Context(), "invoice.created", order{"a", 5}, event.WithSource("/s")); err != nil {
				b.Fatal(err)
			}
		}
	})
}
