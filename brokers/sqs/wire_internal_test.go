package sqs

import (
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
	"github.com/headrace-go/headrace/event"
)

// Whatever a message has in it arrives, in what SQS takes: ten attributes, each with a name, a value and text only.
func TestEveryMessageSurvivesTheWire(t *testing.T) {
	odd := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-zA-Z._-]{1,12}`),
		rapid.SampledFrom([]string{"", attrUUID, attrWire, "ce_type", "aws.x", "Amazon.y", "a..b", ".a", "a.", "\x00", "\xff\xfe", "\ufffe", "m.x", "uuid", "body", strings.Repeat("k", 300)}))
	rapid.Check(t, func(t *rapid.T) {
		m := message.NewMessage(odd.Draw(t, "uuid"), nil)
		switch rapid.IntRange(0, 3).Draw(t, "payload") {
		case 0:
			m.Payload = message.Payload{}
		case 1:
			m.Payload = message.Payload(odd.Draw(t, "text"))
		case 2:
			m.Payload = rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(t, "bytes")
		}
		for k, v := range rapid.MapOfN(odd, odd, 0, 20).Draw(t, "metadata") {
			m.Metadata[k] = v
		}
		body, attributes, size := encode(m)
		if body == "" || !isText(body) {
			t.Errorf("body %q: SQS does not take it", body)
		}
		if len(attributes) > maxAttributes {
			t.Errorf("%d attributes, SQS takes %d", len(attributes), maxAttributes)
		}
		counted, names := len(body), map[string]bool{}
		for _, a := range attributes {
			if a.name == "" || a.value == "" || !isText(a.value) || names[a.name] {
				t.Errorf("attribute %q=%q: SQS does not take it", a.name, a.value)
			}
			names[a.name] = true
			counted += len(a.name) + len("String") + len(a.value)
		}
		if counted != size {
			t.Errorf("size is %d, want %d", size, counted)
		}
		got, err := decode(body, attributes, "fallback")
		if err != nil {
			t.Fatalf("decode: %v", err)
		}
		if !got.Equals(m) || (got.Payload == nil) != (m.Payload == nil) {
			t.Errorf("received %q %q %q (nil: %v), want %q %q %q (nil: %v)",
				got.UUID, got.Metadata, got.Payload, got.Payload == nil, m.UUID, m.Metadata, m.Payload, m.Payload == nil)
		}
	})
}

// The wire format is frozen: what an older program sent must be read.
func TestWireFormat(t *testing.T) {
	m := message.NewMessage("", []byte("\x00"))
	m.Metadata["ce_type"], m.Metadata["a key"] = "order.placed", "ü&="
	body, attributes, _ := encode(m)
	if want := "AA=="; body != want {
		t.Errorf("body %q, want %q", body, want)
	}
	want := map[string]string{"ce_type": "order.placed", attrWire: "body=base64&m.a+key=%C3%BC%26%3D&uuid="}
	if len(attributes) != len(want) {
		t.Errorf("attributes %v, want %v", attributes, want)
	}
	for _, a := range attributes {
		if a.value != want[a.name] {
			t.Errorf("attribute %s is %q, want %q", a.name, a.value, want[a.name])
		}
	}
}

func TestUnreadableWireIsAnErrorWithTheExactBody(t *testing.T) {
	for _, tt := range []struct{ body, wire string }{
		{"%%", "body=base64"},
		{"hello", "%zz"},
		{"hello", "body=gzip"},
	} {
		m, err := decode(tt.body, []attribute{{"k", "v"}, {attrWire, tt.wire}}, "id")
		if err == nil || string(m.Payload) != tt.body || m.Metadata["k"] != "v" || m.UUID != "id" {
			t.Errorf("decode(%q, %q): %v %q %v, want an error and the body", tt.body, tt.wire, err, m.Payload, m.Metadata)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("body", "body=base64", "k", "v")
	f.Add("", "body=nil&m.k=v&uuid=%00", "", "")
	f.Add(`{"Type":"Notification","MessageId":"1","TopicArn":"t","Message":"m","MessageAttributes":{"a":{"Type":"Binary","Value":"%"}}}`, "", "", "")
	f.Fuzz(func(t *testing.T, body, wire, name, value string) {
		m, err := decode(body, []attribute{{attrWire, wire}, {name, value}}, "id")
		if err != nil && string(m.Payload) != body {
			t.Errorf("with an error the payload is %q, want the body %q", m.Payload, body)
		}
		if n, ok := unwrap(body); ok {
			if _, err := n.attributes(); err == nil && n.Message == nil {
				t.Error("a notification without a message")
			}
		}
	})
}

func TestNamesOfQueues(t *testing.T) {
	names := map[string]string{}
	long := strings.Repeat("x", 100)
	for _, tt := range []struct {
		topic, consumer string
		fifo            bool
		want            string // its beginning
	}{
		{"orders", "", false, "orders"},
		{"orders", "", true, "orders.fifo"},
		{"orders.placed", "", false, "orders-placed-"},
		{"orders-placed", "", false, "orders-placed"},
		{"orders/placed", "", false, "orders-placed-"},
		{long, "", false, "xxxx"},
		{long + "y", "", false, "xxxx"},
		{long, "", true, "xxxx"},
		{"a-b", "c", false, "c-a-b-"},
		{"b", "c-a", false, "c-a-b-"},
		{"b", "c-a", true, "c-a-b-"},
		{"東京", "", false, "-"},
		{"京東", "", false, "-"},
	} {
		name := queueName(tt.topic, tt.consumer, tt.fifo)
		if !strings.HasPrefix(name, tt.want) || len(name) > maxName || strings.HasSuffix(name, fifoSuffix) != tt.fifo {
			t.Errorf("queueName(%.20q, %q, %v) = %q, want %q and at most 80 bytes", tt.topic, tt.consumer, tt.fifo, name, tt.want)
		}
		if strings.Trim(strings.TrimSuffix(name, fifoSuffix), "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
			t.Errorf("queueName(%.20q) = %q, which is no name", tt.topic, name)
		}
		if other, there := names[name]; there {
			t.Errorf("queueName: %q for %.20q and for %.20q", name, tt.topic, other)
		}
		names[name] = tt.topic
	}
	if got := queueName("orders.fifo", "", true); got != "orders.fifo" {
		t.Errorf("queueName(orders.fifo) = %q", got)
	}
}

func TestEveryKeySurvivesItsGroup(t *testing.T) {
	for _, key := range []string{"customer-7", "", " ", "Zoë", "\x00", strings.Repeat("k", 128), strings.Repeat("k", 129), groupNone + "x", groupHashed + "x"} {
		group := groupOf([]byte(key))
		if !isGroup(group) || groupOf([]byte(key)) != group {
			t.Errorf("the group of key %.20q is %q: SQS does not take it, or it is another each time", key, group)
		}
		m := message.NewMessage("", nil)
		m.Metadata[event.MetaPartitionKey] = key
		got := keyOf(group, m, func(m *message.Message) []byte { return []byte(m.Metadata[event.MetaPartitionKey]) })
		if string(got) != key || got == nil {
			t.Errorf("the key of group %q is %.20q, want %.20q", group, got, key)
		}
	}
	one, other := groupOf(nil), groupOf(nil)
	if one == other || keyOf(one, message.NewMessage("", nil), adapter.Key) != nil {
		t.Errorf("two messages without a key have the groups %q and %q, want two, and no key", one, other)
	}
	if got := keyOf("theirs", message.NewMessage("", nil), adapter.Key); string(got) != "theirs" {
		t.Errorf("the key of another program's group is %q, want the group", got)
	}
}

func TestWavesKeepGroupsInOrder(t *testing.T) {
	var all []*outgoing
	for _, group := range []string{"a", "b", "a", "", "a", "b", ""} {
		all = append(all, &outgoing{group: group, size: 10})
	}
	var got []string
	for _, wave := range waves(all) {
		groups := ""
		for _, o := range wave {
			groups += o.group + "."
		}
		got = append(got, groups)
	}
	if want := "a.b..." + " a.b. a."; strings.Join(got, " ") != want {
		t.Errorf("waves: %q, want %q", strings.Join(got, " "), want)
	}
	for _, tt := range []struct{ n, limit, want int }{{10, 100, 1}, {11, 1000, 2}, {10, 99, 2}, {3, 10, 3}} {
		wave := make([]*outgoing, tt.n)
		for i := range wave {
			wave[i] = &outgoing{size: 10}
		}
		if got := len(batches(wave, tt.limit)); got != tt.want {
			t.Errorf("%d messages of 10 bytes with a limit of %d: %d batches, want %d", tt.n, tt.limit, got, tt.want)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	m := typical()
	b.ReportAllocs()
	for b.Loop() {
		encode(m)
	}
}

func BenchmarkDecode(b *testing.B) {
	body, attributes, _ := encode(typical())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decode(body, attributes, ""); err != nil {
			b.Fatal(err)
		}
	}
}

func typical() *message.Message {
	m := message.NewMessage("0198b2f4-0000-7000-8000-000000000000", []byte(strings.Repeat("x", 256)))
	for _, k := range []string{"ce_id", "ce_type", "ce_source", "ce_time", "ce_specversion", "ce_partitionkey", "content-type", "traceparent"} {
		m.Metadata[k] = "00-0af7651916cd43dd8448eb211c80319c"
	}
	return m
}
