package amqp

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/brokers"
)

// received is p as a consumer gets it.
func received(p amqp091.Publishing) *amqp091.Delivery {
	return &amqp091.Delivery{
		Headers: p.Headers, ContentType: p.ContentType, CorrelationId: p.CorrelationId, MessageId: p.MessageId, Timestamp: p.Timestamp, Body: p.Body,
		Exchange: "topic", RoutingKey: "key",
	}
}

func FuzzEveryMessageArrivesAsItWasSent(f *testing.F) {
	f.Add("id", "key", "value", "other", []byte("payload"), false)
	f.Add("", "h:headrace-payload", "\xff\x00", "headrace-payload", []byte{}, true)
	f.Add("x", "headrace-payload", "nil", "h:h:x", []byte{}, false)
	f.Add("x", "_watermill_message_uuid", "h:", "CC", []byte("\x00"), false)
	f.Add("x", "x-delivery-count", "3", "x-death", []byte("\x00"), false)
	f.Add("x", "headrace-delay", "nil", "headrace-delay-3", []byte("\x00"), false)
	f.Add("x", "cloudEvents:type", "t", "ce-type", []byte("\x00"), false)
	f.Fuzz(func(t *testing.T, uuid, key, value, another string, payload []byte, isNil bool) {
		sent := message.NewMessage(uuid, payload)
		if isNil {
			sent.Payload = nil
		}
		sent.Metadata[key], sent.Metadata[another] = value, "another"
		p, err := encode(sent, 1<<20, defaultFrameSize)
		if err != nil {
			if len(key) < 250 && len(another) < 250 && len(uuid)+len(value) < 1<<16 {
				t.Fatalf("encode: %v", err)
			}
			return
		}
		if len(appendField(nil, p.Headers)) > defaultFrameSize-frameReserve+5 {
			t.Fatal("the headers are larger than they were said to be")
		}
		// Through the queues of a delay as well.
		d := received(p)
		l, _ := delayLetter(d, "queue", 3, time.Hour)
		delayed := received(l.content)
		delayed.Exchange = ""
		if count, left := undelay(delayed); count != 3 || left != 0 || delayed.Exchange != "topic" || delayed.RoutingKey != "key" {
			t.Fatalf("after a delay: count %d, %v left, exchange %q, key %q", count, left, delayed.Exchange, delayed.RoutingKey)
		}
		for _, d := range []*amqp091.Delivery{d, delayed} {
			got, headers, err := decode(d)
			if err != nil || headers != nil {
				t.Fatalf("decode(%v): %v, headers %v", d.Headers, err, headers)
			}
			if got.UUID != uuid || !maps.Equal(got.Metadata, sent.Metadata) || !bytes.Equal(got.Payload, sent.Payload) || (got.Payload == nil) != (sent.Payload == nil) {
				t.Errorf("sent %q %v %q, got %q %v %q", uuid, sent.Metadata, sent.Payload, got.UUID, got.Metadata, got.Payload)
			}
		}
	})
}

func TestForeignHeadersKeepTheirTypes(t *testing.T) {
	at := time.Unix(1700000000, 0).UTC()
	d := &amqp091.Delivery{
		MessageId: "foreign-1", ContentType: "application/json", CorrelationId: "corr", Body: []byte("{}"),
		Headers: amqp091.Table{
			"string": "s", "bytes": []byte{0xff}, "yes": true, "int8": int8(-1), "uint8": uint8(200), "int16": int16(-300), "uint16": uint16(60000),
			"int32": int32(-70000), "uint32": uint32(4e9), "int64": int64(-5e12), "float": float32(0.5), "double": 1e300, "time": at, "void": nil,
			"decimal": amqp091.Decimal{Scale: 2, Value: 314}, "array": []any{int32(1), "two"}, "table": amqp091.Table{"b": int64(2), "a": false},
			"cloudEvents:type": "order.placed", "cloudEvents_id": "7", "ce-source": "/shop",
		},
	}
	m, headers, err := decode(d)
	if err != nil {
		t.Fatal(err)
	}
	want := message.Metadata{
		"string": "s", "bytes": "\xff", "yes": "true", "int8": "-1", "uint8": "200", "int16": "-300", "uint16": "60000",
		"int32": "-70000", "uint32": "4000000000", "int64": "-5000000000000", "float": "0.5", "double": "1e+300", "time": "2023-11-14T22:13:20Z", "void": "",
		"decimal": `{"Scale":2,"Value":314}`, "array": `[1,"two"]`, "table": `{"a":false,"b":2}`,
		"ce_type": "order.placed", "ce_id": "7", "ce_source": "/shop", "content-type": "application/json", "correlation_id": "corr",
	}
	if m.UUID != "foreign-1" || !maps.Equal(m.Metadata, want) {
		t.Errorf("got %q %v\nwant foreign-1 %v", m.UUID, m.Metadata, want)
	}
	if len(headers) != len(d.Headers) || !slices.IsSortedFunc(headers, func(a, b brokers.Header) int { return strings.Compare(a.Key, b.Key) }) {
		t.Fatalf("headers %v, want all of them, sorted", headers)
	}
	for _, h := range []struct{ key, value string }{
		{"string", "s"},
		{"bytes", "\xff"},
		{"yes", "t\x01"},
		{"int16", "s\xfe\xd4"},
		{"int64", "l\xff\xff\xfb\x73\xd8\xc6\xb0\x00"},
		{"double", "d\x7e\x37\xe4\x3c\x88\x00\x75\x9c"},
		{"void", "V"},
		{"decimal", "D\x02\x00\x00\x01\x3a"},
		{"time", "T\x00\x00\x00\x00\x65\x53\xf1\x00"},
		{"array", "A\x00\x00\x00\x0dI\x00\x00\x00\x01S\x00\x00\x00\x03two"},
		{"table", "F\x00\x00\x00\x0f\x01at\x00\x01bl\x00\x00\x00\x00\x00\x00\x00\x02"},
	} {
		i := slices.IndexFunc(headers, func(got brokers.Header) bool { return got.Key == h.key })
		if got := string(headers[i].Value); got != h.value {
			t.Errorf("header %s is %q, want %q", h.key, got, h.value)
		}
	}
}

// The server refuses CC that is no array, and would send the message to what an array names; a header of ours would be believed.
func TestMetadataIsNoOrderToTheServer(t *testing.T) {
	m := message.NewMessage("id", nil)
	for _, k := range []string{"CC", "BCC", "x-delivery-count", "x-death", "x-first-death-queue", "headrace-delay", "x-stream-filter-value"} {
		m.Metadata[k] = "v"
	}
	p, err := encode(m, 0, defaultFrameSize)
	if err != nil {
		t.Fatal(err)
	}
	for k := range m.Metadata {
		if _, there := p.Headers[k]; there {
			t.Errorf("header %q is sent as it is", k)
		}
	}
}

func TestWhatAMQPCannotCarryIsNamed(t *testing.T) {
	for _, tt := range []struct {
		want string
		m    func(*message.Message)
	}{
		{"payload has 11 bytes: want at most 10", func(m *message.Message) { m.Payload = make([]byte, 11) }},
		{"has 256 bytes: want at most 255", func(m *message.Message) { m.Metadata[strings.Repeat("k", 256)] = "" }},
		{"want at most 114688", func(m *message.Message) { m.Metadata["k"] = strings.Repeat("v", 115000) }},
		{"want at most 114688", func(m *message.Message) { m.UUID = strings.Repeat("v", 115000) }},
	} {
		m := message.NewMessage("id", nil)
		tt.m(m)
		if _, err := encode(m, 10, defaultFrameSize); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("encode: %v, want an error with %q", err, tt.want)
		}
	}
	m := message.NewMessage("id", nil)
	m.Metadata["k"] = strings.Repeat("v", maxHeaderBytes-1)
	if _, err := encode(m, 10, defaultFrameSize); err != nil {
		t.Errorf("metadata of %d bytes: %v", maxHeaderBytes, err)
	}
}

func TestDelaysAreRoundedUpAndVisitTheLastLevel(t *testing.T) {
	for _, tt := range []struct {
		delay, waits, left time.Duration
	}{
		{1, delayTick, 0},
		{delayTick, delayTick, 0},
		{delayTick + 1, 3 * delayTick, 0},
		{2 * delayTick, 3 * delayTick, 0},
		{time.Hour, time.Hour + delayTick, 0},
		{delayTick<<delayLevels - delayTick, delayTick<<delayLevels - delayTick, 0},
		{delayTick << delayLevels, delayTick<<delayLevels - delayTick, delayTick},
		{1000 * 24 * time.Hour, delayTick<<delayLevels - delayTick, 1000*24*time.Hour - delayTick<<delayLevels + delayTick},
	} {
		l, level := delayLetter(&amqp091.Delivery{Exchange: "x"}, "queue", 1, tt.delay)
		var waits time.Duration
		for n := range delayLevels {
			if visits, _ := l.content.Headers[levelHeader(n)].(bool); visits {
				waits += delayTick << n
			}
		}
		left := l.content.Headers[headerDelay].(amqp091.Table)[delayLeft]
		if waits != tt.waits || left != tt.left.Milliseconds() || l.content.Headers[levelHeader(0)] != true || l.content.Headers[levelHeader(level)] != true {
			t.Errorf("a delay of %v waits %v and has %v ms left; want %v and %v", tt.delay, waits, left, tt.waits, tt.left)
		}
		if l.exchange != delayName(level) || l.key != "queue" {
			t.Errorf("it goes to %q with key %q", l.exchange, l.key)
		}
	}
}

func TestNamesOfQueuesNeverMeet(t *testing.T) {
	seen := map[string][2]string{}
	for _, consumer := range []string{"a", "a/b", "b", "a%2Fb", "unrouted!", "a!"} {
		for _, topic := range []string{"a", "b/a", "c", "b%2Fa", "x/unrouted!"} {
			name := queueName(consumer, topic)
			if before, there := seen[name]; there {
				t.Errorf("%q of %q and %q of %q are both %q", consumer, topic, before[0], before[1], name)
			}
			if strings.HasSuffix(name, unroutedSuffix) {
				t.Errorf("%q of %q is %q, which is a topic's backlog", consumer, topic, name)
			}
			seen[name] = [2]string{consumer, topic}
		}
	}
}
