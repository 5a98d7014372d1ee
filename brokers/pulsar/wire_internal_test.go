package pulsar

import (
	"bytes"
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
	"pgregory.net/rapid"
)

// arrived is a message as the client gives it.
type arrived struct {
	pulsarclient.Message
	sent      *pulsarclient.ProducerMessage
	encrypted *pulsarclient.EncryptionContext
}

func (a arrived) Payload() []byte                                       { return a.sent.Payload }
func (a arrived) Properties() map[string]string                         { return a.sent.Properties }
func (a arrived) Key() string                                           { return a.sent.Key }
func (a arrived) OrderingKey() string                                   { return a.sent.OrderingKey }
func (a arrived) GetEncryptionContext() *pulsarclient.EncryptionContext { return a.encrypted }

func TestWireIsExactAndText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Custom(func(t *rapid.T) string {
			return string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		}), rapid.SampledFrom([]string{"", propertyUUID, propertyWire, propertyDelay, "headrace-", "m.x", "payload", "uuid"}))
		m := message.NewMessage(text.Draw(t, "uuid"), rapid.SliceOf(rapid.Byte()).Draw(t, "payload"))
		if rapid.Bool().Draw(t, "nil") {
			m.Payload = nil
		}
		m.Metadata = rapid.MapOf(text, text).Draw(t, "metadata")
		key := text.Draw(t, "key")
		sent, err := encode(m, key, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range sent.Properties {
			if k == "" || strings.ToValidUTF8(k+v, "\x00bad") != k+v {
				t.Fatalf("property %q=%q is no text", k, v)
			}
		}
		if strings.ToValidUTF8(sent.Key, "\x00bad") != sent.Key {
			t.Fatalf("partition key %q is no text", sent.Key)
		}
		in := arrived{sent: sent}
		got, err := decode(in)
		if err != nil {
			t.Fatalf("decode: %v", err)
		}
		if got.UUID != m.UUID || !maps.Equal(got.Metadata, m.Metadata) || !bytes.Equal(got.Payload, m.Payload) || (got.Payload == nil) != (m.Payload == nil) {
			t.Fatalf("got %q %q %q (nil: %t), want %q %q %q (nil: %t)",
				got.UUID, got.Metadata, got.Payload, got.Payload == nil, m.UUID, m.Metadata, m.Payload, m.Payload == nil)
		}
		if k := keyOf(in); string(k) != key || (k == nil) != (key == "") {
			t.Fatalf("key is %q, want %q", k, key)
		}
	})
}

func TestWhatContradictsItselfArrivesAsItIs(t *testing.T) {
	for _, tt := range []struct {
		name, wire, payload string
		encrypted           *pulsarclient.EncryptionContext
	}{
		{"no payload and one", "payload=nil", "x", nil},
		{"no form", "%zz", "x", nil},
		{"another's form", "color=red", "x", nil},
		{"another word for the payload", "payload=none", "", nil},
		{"two of one", "m.k=a&m.k=b", "x", nil},
		{"encrypted", "m.k=a", "x", &pulsarclient.EncryptionContext{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			properties := map[string]string{propertyWire: tt.wire, propertyUUID: "id", "k": "v"}
			m, err := decode(arrived{sent: &pulsarclient.ProducerMessage{Payload: []byte(tt.payload), Properties: properties}, encrypted: tt.encrypted})
			if err == nil || string(m.Payload) != tt.payload || m.Payload == nil || m.UUID != "id" || m.Metadata[propertyWire] != tt.wire || m.Metadata["k"] != "v" {
				t.Errorf("got %q %q %v, %v; want all as it came, and an error", m.UUID, m.Payload, m.Metadata, err)
			}
		})
	}
}

func TestTooLargeIsRefusedByItsSizeOnTheWire(t *testing.T) {
	m := message.NewMessage("id", make([]byte, 100))
	m.Metadata["k"] = strings.Repeat("v", 100)
	size := 100 + 2*(len("id")+len(propertyUUID)+propertyOverhead+101+propertyOverhead+len("key"))
	if _, err := encode(m, "key", size); err != nil {
		t.Errorf("encode with room for all: %v", err)
	}
	if _, err := encode(m, "key", size-1); err == nil {
		t.Error("encode with a byte too little gave no error")
	}
}

func TestOffsetIsThePositionOrNone(t *testing.T) {
	for _, tt := range []struct {
		p    position
		want int64
	}{
		{position{0, 0, 0}, 0},
		{position{0, 1, 0}, 1 << 10},
		{position{1, 0, 5}, 1<<34 + 5},
		{position{1<<29 - 1, 1<<24 - 1, 1<<10 - 1}, math.MaxInt64},
		{position{1 << 29, 0, 0}, -1},
		{position{0, 1 << 24, 0}, -1},
		{position{0, 0, 1 << 10}, -1},
		{position{-1, 0, 0}, -1},
	} {
		if got := tt.p.offset(); got != tt.want {
			t.Errorf("offset of %v is %d, want %d", tt.p, got, tt.want)
		}
	}
}

func TestRecentForgetsTheOldest(t *testing.T) {
	r := recent{most: 2}
	for i := range int64(3) {
		r.add(position{entry: i})
		r.add(position{entry: i})
	}
	if r.has(position{entry: 0}) || !r.has(position{entry: 1}) || !r.has(position{entry: 2}) {
		t.Errorf("has %v, want the last two", r.order)
	}
	r.remove(position{entry: 1})
	r.add(position{entry: 3})
	if r.has(position{entry: 1}) || !r.has(position{entry: 2}) || !r.has(position{entry: 3}) {
		t.Errorf("has %v, want the last two", r.order)
	}
}

// Different consumers and topics have different topics for what they delay.
func TestDelayTopicsDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, topic := range []string{"a", "a-b", "a-b-c"} {
		for _, consumer := range []string{"c", "b-c", "b%2Dc", "b/c", "a"} {
			name := delayTopic(topic, consumer)
			if other, there := seen[name]; there {
				t.Errorf("%q is that of %s/%s and of %s", name, topic, consumer, other)
			}
			seen[name] = topic + "/" + consumer
		}
	}
}
