package jetstream

import (
	"bytes"
	"maps"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/headrace-go/headrace/event"
)

func TestContentTypeIsThatOfEvent(t *testing.T) {
	if contentType != event.MetaContentType {
		t.Errorf("contentType is %q, want %q", contentType, event.MetaContentType)
	}
}

// FuzzWire sends a message through the header format of NATS and back.
func FuzzWire(f *testing.F) {
	f.Add("id", "k", "v", "ce_subject", "100% \"x\"", []byte("payload"))
	f.Add("", "", "", "content-type", "a\r\nb", []byte(nil))
	f.Add(" a\x00", "Nats-Rollup", "all", "headrace-meta", "%zz", []byte{})
	f.Add("\xff", "ce_specversion", "1.0", "content-type", "application/CloudEvents", []byte{0})
	f.Fuzz(func(t *testing.T, uuid, k1, v1, k2, v2 string, payload []byte) {
		sent := message.NewMessage(uuid, payload)
		sent.Metadata[k1] = v1
		sent.Metadata[k2] = v2
		out := encode("topic", sent)
		var b strings.Builder
		b.WriteString("NATS/1.0\r\n")
		for k, values := range out.Header {
			for _, v := range values {
				if strings.ContainsAny(k, " :\r\n") || strings.ContainsAny(v, "\r\n") {
					t.Fatalf("header %q: %q cannot go over the wire", k, v)
				}
				b.WriteString(k + ": " + strings.Trim(v, " \t") + "\r\n")
			}
		}
		b.WriteString("\r\n")
		h, err := nats.DecodeHeadersMsg([]byte(b.String()))
		if err != nil {
			t.Fatalf("%q: %v", b.String(), err)
		}
		got, headers, err := decode(&nats.Msg{Header: h, Data: out.Data})
		if err != nil || headers != nil {
			t.Fatalf("decode: headers %q, error %v", headers, err)
		}
		if got.UUID != uuid || !maps.Equal(got.Metadata, sent.Metadata) || !bytes.Equal(got.Payload, payload) || (got.Payload == nil) != (payload == nil) {
			t.Fatalf("got %q %q %q, want %q %q %q", got.UUID, got.Metadata, got.Payload, uuid, sent.Metadata, payload)
		}
	})
}

// FuzzDecode reads headers that anybody may have written.
func FuzzDecode(f *testing.F) {
	f.Add("headrace-meta", "a=b", []byte("x"))
	f.Add("ce-type", "%", []byte(nil))
	f.Add("Content-Type", "", []byte("x"))
	f.Fuzz(func(t *testing.T, k, v string, payload []byte) {
		m, _, _ := decode(&nats.Msg{Header: nats.Header{k: {v, v}}, Data: payload})
		if !bytes.Equal(m.Payload, payload) {
			t.Fatalf("payload is %q, want %q", m.Payload, payload)
		}
	})
}
