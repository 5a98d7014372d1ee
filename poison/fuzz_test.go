package poison_test

import (
	"bytes"
	"maps"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/poison"
)

// FuzzDeadLetter: whatever a message is made of, its dead letter has it byte for byte, keeps to the broker's limit, and gives it back
// when it is redriven.
func FuzzDeadLetter(f *testing.F) {
	f.Add("u-1", []byte("order-1"), "x", []byte("y"), "a", "b", []byte(`{}`), uint16(0))
	f.Add("u-1", []byte{0xff, 0}, "x", []byte("y"), "a", "b", []byte("p"), uint16(9999))
	f.Add("\xff", []byte{0xff, 0}, "", []byte(nil), "", "\r\n", []byte(nil), uint16(1))
	f.Add("", []byte(nil), "ä", []byte{}, "ce_id", "", []byte{}, uint16(5000))
	f.Add(strings.Repeat("u", 300), bytes.Repeat([]byte("k"), 300), "\u2028", []byte("<&>"), "x", strings.Repeat("v", 3000), []byte("\xff"), uint16(3))
	f.Fuzz(func(t *testing.T, uuid string, key []byte, headerName string, header []byte, name, value string, payload []byte, limit uint16) {
		if strings.HasPrefix(name, event.MetaPrefix) {
			return // ours: a dead letter does not take it for the sender's
		}
		most := 1<<10 + int(limit)
		var sent *message.Message
		var from brokers.Delivery
		dead, r := die(t, gaveUp(classify.VerdictPoison, errDown), func(msg *message.Message, d *brokers.Delivery) {
			msg.UUID, msg.Payload = uuid, payload
			msg.Metadata[name] = value
			d.Key, d.Headers = key, []brokers.Header{{Key: headerName, Value: header}, {Key: headerName}}
			sent, from = msg.Copy(), *d
			sent.Payload = payload // a copy of nothing is empty
		}, func(c *poison.Config) { c.MaxHeaderBytes = most })
		if got := headerBytes(dead); got > most {
			t.Errorf("%d bytes of metadata, want at most %d", got, most)
		}
		for k, v := range dead.Metadata {
			if strings.HasPrefix(k, event.MetaPrefix) && !utf8.ValidString(v) {
				t.Errorf("%s is %q: a broker may take no header that is no text", k, v)
			}
		}
		if r.UUID != uuid || !same(r.Payload, payload) || !same(r.Key, key) || !maps.Equal(r.Metadata, map[string]string(sent.Metadata)) ||
			!reflect.DeepEqual(r.Headers, from.Headers) {
			t.Errorf("the dead letter has %q, key %q, headers %q, %q, %q\nwant %q, key %q, headers %q, %q, %q",
				r.UUID, r.Key, r.Headers, r.Metadata, r.Payload, uuid, key, from.Headers, sent.Metadata, payload)
		}
		checkKept(t, r)
		got := redriven(t, r, 1)
		d := brokers.DeliveryOf(got.Context())
		if got.UUID != uuid || !same(got.Payload, payload) || !maps.Equal(got.Metadata, sent.Metadata) || !same(d.Key, key) ||
			!reflect.DeepEqual(d.Headers, from.Headers) {
			t.Errorf("redriven: %q, key %q, headers %q, %q, %q\nwant %q, key %q, headers %q, %q, %q",
				got.UUID, d.Key, d.Headers, got.Metadata, got.Payload, uuid, key, from.Headers, sent.Metadata, payload)
		}
	})
}

// same compares bytes; nil and empty are not the same.
func same(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

// checkKept: what was read can be kept as a document, and comes back as it was.
func checkKept(t *testing.T, r poison.Record) {
	t.Helper()
	document, err := r.MarshalDocument()
	if err != nil {
		t.Fatalf("the record cannot be kept: %v", err)
	}
	again, err := poison.ParseDocument(r.ID, document, r.Payload)
	if err != nil {
		t.Fatalf("%s: %v", document, err)
	}
	second, err := again.MarshalDocument()
	if err != nil || !bytes.Equal(second, document) {
		t.Errorf("the document changes: %s\nthen %s, %v", document, second, err)
	}
	if !same(again.Key, r.Key) || !same(again.Payload, r.Payload) || !maps.Equal(again.Metadata, r.Metadata) || again.UUID != r.UUID ||
		!reflect.DeepEqual(again.Headers, r.Headers) || again.MessageID != r.MessageID || again.Deaths != r.Deaths || again.Offset != r.Offset {
		t.Errorf("kept %+v\ncame back %+v", r, again)
	}
}

// FuzzParse: no dead letter makes Parse panic, whoever wrote it, and what it reads can be kept.
func FuzzParse(f *testing.F) {
	f.Add("", "[]", "a2V5", "1", []byte("x"))
	f.Add("envelope", "", "", "2", []byte(`{"version":1,"verdict":"poison","metadata":[["a",{"base64":"/w=="}]],"headers":[["a",null]],"payload":null}`))
	f.Add("envelope", "", "", "", []byte(`{"version":1,"verdict":"retry","key":"","headers":[[{"base64":"/w=="},""]],"metadata":null,"time":"2026-01-02T03:04:05.6+14:00"}`))
	f.Fuzz(func(t *testing.T, encoding, headers, key, number string, payload []byte) {
		msg := message.NewMessage("1", payload)
		msg.Metadata = message.Metadata{
			poison.MetaVersion: "1", poison.MetaVerdict: "poison", poison.MetaEncoding: encoding, poison.MetaHeaders: headers,
			poison.MetaKey: key, poison.MetaKeyEncoding: "base64", poison.MetaOffset: number, poison.MetaDeaths: number, poison.MetaTime: number,
		}
		r, err := poison.Parse(msg)
		if err != nil {
			return
		}
		if r.Version != 1 {
			t.Errorf("version %d without an error", r.Version)
		}
		checkKept(t, r)
	})
}
