package jetstream_test

import (
	"maps"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/event"
)

// The headers are a contract with programs of other languages: a change here is a breaking one.
func TestHeadersOnTheWire(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	for _, tt := range []struct {
		name string
		m    *message.Message
		want map[string]string
	}{
		{
			"event in binary mode",
			&message.Message{UUID: "id-1", Payload: []byte("{}"), Metadata: message.Metadata{
				event.MetaSpecVersion: "1.0", event.MetaID: "id-1", event.MetaSource: "/orders", event.MetaType: "order.placed",
				event.MetaSubject: `Zoë's "100%"`, event.MetaContentType: "application/json",
				event.MetaTraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			}},
			map[string]string{
				"_watermill_message_uuid": "id-1", "ce-specversion": "1.0", "ce-id": "id-1", "ce-source": "/orders",
				"ce-type": "order.placed", "ce-subject": "Zo%C3%AB's%20%22100%25%22", "ce-datacontenttype": "application/json",
				"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			},
		},
		{
			"event in structured mode",
			&message.Message{UUID: "id-2", Payload: []byte("{}"), Metadata: message.Metadata{
				event.MetaContentType: "application/cloudevents+json; charset=utf-8",
			}},
			map[string]string{"_watermill_message_uuid": "id-2", "content-type": "application/cloudevents+json; charset=utf-8"},
		},
		{
			"plain, with what a header cannot hold",
			&message.Message{UUID: "a\nb", Metadata: message.Metadata{
				event.MetaContentType: "text/plain", "note": "two\r\nlines", "Nats-Rollup": "all",
			}},
			map[string]string{
				"headrace-uuid": "a%0Ab", "content-type": "text/plain",
				"headrace-meta": "Nats-Rollup=all|note=two%0D%0Alines", "headrace-payload": "nil",
			},
		},
	} {
		adaptertest.Publish(t, b, "wire", tt.m)
		s, err := admin(t, b).Stream(t.Context(), "wire")
		if err != nil {
			t.Fatal(err)
		}
		raw, err := s.GetLastMsgForSubject(t.Context(), "wire")
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]string)
		for k, values := range raw.Header {
			for _, v := range values {
				if got[k] != "" {
					got[k] += "|"
				}
				got[k] += v
			}
		}
		if !maps.Equal(got, tt.want) {
			t.Errorf("%s: headers are %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestForeignHeaders(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	adaptertest.Publish(t, b, "foreign", message.NewMessage("", nil))
	_, in := adaptertest.Subscribe(t, b, "c", "foreign", 1)
	adaptertest.Next(t, in).Ack()
	for _, tt := range []struct {
		name      string
		header    nats.Header
		data      []byte
		uuid      string
		want      message.Metadata
		headers   int // in Delivery.Headers
		undecoded bool
	}{
		{"none", nil, []byte("x"), "", message.Metadata{}, 0, false},
		{
			"CloudEvents of another SDK",
			nats.Header{"ce-type": {"order.placed"}, "ce-subject": {"Zo%c3%ab"}, "ce-datacontenttype": {"text/plain"}},
			[]byte("x"), "",
			message.Metadata{event.MetaType: "order.placed", event.MetaSubject: "Zoë", event.MetaContentType: "text/plain"},
			0, false,
		},
		{"bad percent-encoding is left alone", nats.Header{"ce-subject": {"100%"}}, []byte("x"), "", message.Metadata{event.MetaSubject: "100%"}, 0, false},
		{"structured", nats.Header{"Content-Type": {"application/cloudevents+json"}}, []byte("{}"), "", message.Metadata{event.MetaContentType: "application/cloudevents+json"}, 0, false},
		{"watermill-nats", nats.Header{"_watermill_message_uuid": {"id"}, "K": {"v"}}, []byte("x"), "id", message.Metadata{"K": "v"}, 0, false},
		{"case is kept", nats.Header{"Key": {"1"}, "key": {"2"}}, []byte("x"), "", message.Metadata{"Key": "1", "key": "2"}, 0, false},
		{"several values", nats.Header{"k": {"1", "2"}}, []byte("x"), "", message.Metadata{"k": "1"}, 2, false},
		{"two headers for one key", nats.Header{"Content-Type": {"a"}, "content-type": {"b"}}, []byte("x"), "", message.Metadata{event.MetaContentType: "a"}, 2, false},
		{"not ours", nats.Header{"headrace-meta": {"no equals sign"}}, []byte("x"), "", message.Metadata{}, 1, true},
		{"nil with bytes", nats.Header{"headrace-payload": {"nil"}}, []byte("x"), "", message.Metadata{}, 1, true},
	} {
		if _, err := b.Conn().RequestMsg(&nats.Msg{Subject: "foreign", Header: tt.header, Data: tt.data}, wait); err != nil {
			t.Fatal(err)
		}
		m := adaptertest.Next(t, in)
		d := brokers.DeliveryOf(m.Context())
		if m.UUID != tt.uuid || !maps.Equal(m.Metadata, tt.want) || string(m.Payload) != string(tt.data) {
			t.Errorf("%s: received %q %q %q, want %q %q %q", tt.name, m.UUID, m.Metadata, m.Payload, tt.uuid, tt.want, tt.data)
		}
		if len(d.Headers) != tt.headers {
			t.Errorf("%s: Delivery.Headers is %q, want %d of them", tt.name, d.Headers, tt.headers)
		}
		if (d.DecodeError != nil) != tt.undecoded {
			t.Errorf("%s: DecodeError is %v, want one: %v", tt.name, d.DecodeError, tt.undecoded)
		}
		if d.Offset < 1 || d.Incarnation == "" {
			t.Errorf("%s: the delivery has no identity: %+v", tt.name, d)
		}
		m.Ack()
	}
}
