package brokertest

import (
	"bytes"
	"maps"
	"strconv"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

func badSubscriptions(t *T) {
	for _, s := range []brokers.Subscription{
		{Topic: t.topic},
		{Consumer: "c", Topic: t.topic, Window: -1},
	} {
		if sub, err := t.broker.Subscriber(s); err == nil {
			_ = sub.Close() // the failure is reported
			t.Errorf("Subscriber(%+v) gave no error", s)
		}
	}
	if sub, err := t.broker.Subscriber(brokers.Subscription{Consumer: "c"}); err == nil {
		if _, err := sub.Subscribe(t.Context(), ""); err == nil {
			t.Error(`Subscribe("") gave no error`)
		}
	}
	if err := t.publisher().Publish("", message.NewMessage("id", nil)); err == nil {
		t.Error(`Publish to topic "" gave no error`)
	}
	if err := t.publisher().Publish(t.topic, nil); err == nil {
		t.Error("Publish of a nil message gave no error")
	}
	if err := t.publisher().Publish(t.topic); err != nil {
		t.Errorf("Publish of no messages: %v", err)
	}
}

// A publisher that is closed, even at once, has not lost what it confirmed.
func publishIsConfirmed(t *T) {
	const n = 100
	r := t.read("c", t.window(16))
	t.publish(0, n)
	t.same("received", r.ack(n), upTo(n))
	r.quiet("after all")
}

// K10: a consumer that starts for the first time must get what was published before.
func earliest(t *T) {
	t.publish(0, 5)
	t.same("received", t.read("c", t.window(16)).ack(5), upTo(5))
}

// Messages of one publisher and one key arrive in order however many publish at once.
func concurrentPublishers(t *T) {
	const publishers, each = 8, 50
	r := t.read("c", t.window(64))
	var wg sync.WaitGroup
	for p := range publishers {
		pub := t.publisher()
		wg.Go(func() {
			for i := 0; i < each; i += 5 {
				batch := make([]*message.Message, 5)
				for j := range batch {
					batch[j] = numbered(i+j, strconv.Itoa(p))
				}
				if err := pub.Publish(t.topic, batch...); err != nil {
					t.Errorf("publisher %d: %v", p, err)
					return
				}
			}
		})
	}
	defer wg.Wait()
	got := make(map[string][]int)
	for range publishers * each {
		m := r.next()
		key := m.Metadata["ce_partitionkey"]
		got[key] = append(got[key], number(m))
		m.Ack()
	}
	for p := range publishers {
		t.same("publisher "+strconv.Itoa(p), got[strconv.Itoa(p)], upTo(each))
	}
	r.quiet("after all")
}

func exact(t *T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	odd := message.Metadata{
		"":                        "empty key",
		"empty":                   "",
		"spaces":                  "  a  b  ",
		"tabs":                    "\ta\t",
		"newlines":                "a\r\nb: c\n\nd\r",
		"nul":                     "a\x00b",
		"percent":                 "100% %41 %zz %",
		"quotes":                  `"a" 'b' \`,
		"equals":                  "a=b=c;d",
		"unicode":                 "Zoë ✓ 東京",
		"not-utf8":                "\xff\xfe",
		"all":                     string(all),
		"Case":                    "upper",
		"case":                    "lower",
		"CASE":                    "all upper",
		"a key with spaces":       "v",
		"a:colon":                 "v",
		"new\r\nline: injected":   "v",
		"käse":                    "v",
		"percent%41":              "v",
		"a=b":                     "v",
		"content-type":            "application/json; charset=utf-8",
		"Content-Type":            "text/plain",
		"ce_type":                 "order.placed",
		"ce_id":                   "id with space, \"quotes\" and 100%",
		"ce_subject":              "Zoë\n",
		"ce_datacontenttype":      "x",
		"ce-type":                 "y",
		"ce_":                     "no name",
		"CE_TYPE":                 "z",
		"Status":                  "404",
		"Description":             "No Messages",
		"Nats-Rollup":             "all",
		"nats-expected-stream":    "other",
		"headrace-meta":           "a=b",
		"headrace-payload":        "nil",
		"headrace_attempts":       "3",
		"traceparent":             "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"baggage":                 "userId=alice%20b,n=1",
		"_watermill_message_uuid": "not the id",
		"long":                    strings.Repeat("x", 4000),
	}
	event := maps.Clone(odd)
	event["ce_specversion"] = "1.0"
	structured := message.Metadata{"content-type": "application/cloudevents+json", "ce_specversion": "1.0"}
	big := bytes.Repeat(all, 256)
	tests := []struct {
		name     string
		uuid     string
		metadata message.Metadata
		payload  message.Payload
	}{
		{"plain", "id-1", message.Metadata{"k": "v"}, message.Payload("payload")},
		{"odd metadata", "id-2", odd, message.Payload("payload")},
		{"odd metadata of an event", "id-3", event, message.Payload("payload")},
		{"structured event", "id-4", structured, message.Payload("{}")},
		{"no metadata", "id-5", message.Metadata{}, message.Payload("payload")},
		{"no id", "", message.Metadata{"k": "v"}, message.Payload("payload")},
		{"odd id", " a\r\nb%✓\xff ", message.Metadata{"k": "v"}, message.Payload("payload")},
		{"nil payload", "id-6", message.Metadata{"k": "v"}, nil},
		{"empty payload", "id-7", message.Metadata{"k": "v"}, message.Payload{}},
		{"empty payload that looks like a word of the broker", "id-8", message.Metadata{"Status": "503"}, message.Payload{}},
		{"nothing at all", "", message.Metadata{}, nil},
		{"all bytes", "id-9", message.Metadata{}, all},
		{"64 KB", "id-10", message.Metadata{}, big},
	}
	r := t.read("c", 1)
	for _, tt := range tests {
		sent := message.NewMessage(tt.uuid, tt.payload)
		sent.Metadata = maps.Clone(tt.metadata)
		if err := t.publisher().Publish(t.topic, sent); err != nil {
			t.Fatalf("%s: Publish: %v", tt.name, err)
		}
		m := r.next()
		if m.UUID != tt.uuid {
			t.Errorf("%s: UUID is %q, want %q", tt.name, m.UUID, tt.uuid)
		}
		for k, want := range tt.metadata {
			if got, there := m.Metadata[k]; got != want || !there {
				t.Errorf("%s: metadata %q is %.60q (there: %v), want %.60q", tt.name, k, got, there, want)
			}
		}
		for k, v := range m.Metadata {
			if _, wanted := tt.metadata[k]; !wanted {
				t.Errorf("%s: metadata %q=%.60q was not published", tt.name, k, v)
			}
		}
		if !bytes.Equal(m.Payload, tt.payload) || (m.Payload == nil) != (tt.payload == nil) {
			t.Errorf("%s: payload is %.100q (nil: %v), want %.100q (nil: %v)",
				tt.name, m.Payload, m.Payload == nil, tt.payload, tt.payload == nil)
		}
		if err := t.delivery(m).DecodeError; err != nil {
			t.Errorf("%s: DecodeError is %v", tt.name, err)
		}
		m.Ack()
	}
	r.quiet("after all")
}

func pristine(t *T) {
	sent := message.NewMessage("id", []byte("payload"))
	sent.Metadata["k"] = "v"
	if err := t.publisher().Publish(t.topic, sent); err != nil {
		t.Fatalf("Publish: %v", err)
	}
	r := t.read("c", 1)
	first := r.next()
	first.Metadata["k"] = "changed"
	first.Metadata["new"] = "x"
	copy(first.Payload, "PAYLOAD")
	first.UUID = "changed"
	first.Nack()
	again := r.next()
	if !again.Equals(sent) {
		t.Errorf("the redelivery is %q %s %q, want %q %s %q: a handler has changed it",
			again.UUID, quote(again.Metadata), again.Payload, sent.UUID, quote(sent.Metadata), sent.Payload)
	}
	again.Ack()
}

func publishCopies(t *T) {
	r := t.read("c", 1)
	sent := message.NewMessage("id", []byte("payload"))
	sent.Metadata["k"] = "v"
	if err := t.publisher().Publish(t.topic, sent); err != nil {
		t.Fatalf("Publish: %v", err)
	}
	sent.Metadata["k"] = "changed"
	copy(sent.Payload, "PAYLOAD")
	got := r.next()
	if got.Metadata["k"] != "v" || string(got.Payload) != "payload" {
		t.Errorf("received %s %q, want what was published, k=v and %q", quote(got.Metadata), got.Payload, "payload")
	}
	got.Ack()
}

func foreign(t *T) {
	if t.PublishForeign == nil {
		t.Skip("there are no foreign publishers")
	}
	payloads := []string{"hello", "\x00\xff", ""}
	r := t.read("c", 1)
	for _, want := range payloads {
		t.PublishForeign(t, t.broker, t.topic, []byte(want))
		m := r.next()
		if string(m.Payload) != want {
			t.Errorf("payload is %q, want %q", m.Payload, want)
		}
		if d := t.delivery(m); d.DecodeError != nil {
			t.Errorf("DecodeError of a payload %q is %v, want nil", want, d.DecodeError)
		}
		m.Ack()
	}
	r.quiet("after all")
}

// D1: bytes that the adapter cannot read must arrive all the same, so that they can be dead-lettered; an adapter that fails
// instead stops its partition or its process.
func undecodable(t *T) {
	if t.PublishUndecodable == nil {
		t.Skip("every message can be decoded")
	}
	t.publish(0, 1)
	want := t.PublishUndecodable(t, t.broker, t.topic)
	t.publish(1, 1)
	r := t.read("c", 1)
	var readable []int
	for range 3 {
		m := r.next()
		if t.delivery(m).DecodeError == nil {
			readable = append(readable, number(m))
		} else if !bytes.Equal(m.Payload, want) {
			t.Errorf("the undecodable message's payload is %q, want %q", m.Payload, want)
		}
		m.Ack()
	}
	t.same("without a DecodeError", readable, upTo(2))
	r.quiet("after all")
}
