package event_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
)

func withUUID(msg *message.Message, uuid string) *message.Message {
	msg.UUID = uuid
	return msg
}

func TestIdentify(t *testing.T) {
	at := func(d brokers.Delivery) *message.Message { return delivered(received("x"), &d) }
	stored := time.Unix(1700000000, 5)
	for name, tt := range map[string]struct {
		msg  *message.Message
		want string
	}{
		"source and id":                             {withUUID(binary("x"), "u"), "ce:/shop 42"},
		"whatever else is wrong":                    {binary("x", "ce_specversion", "9", "ce_time", "never"), "ce:/shop 42"},
		"structured":                                {structured(`{"id":"4\u0032","source":"/shop"}`), "ce:/shop 42"},
		"structured, not ce_id":                     {withUUID(received(`{"id":"1"}`, "content-type", "application/cloudevents+json", "ce_id", "42", "ce_source", "/shop"), "u"), "uuid:orders u"},
		"UUID without a source":                     {withUUID(binary("x", "ce_source", ""), "u"), "uuid:orders u"},
		"UUID without an id":                        {withUUID(binary("x", "ce_id", ""), "u"), "uuid:orders u"},
		"UUID of a plain message":                   {withUUID(received("x"), "u"), "uuid:orders u"},
		"position":                                  {at(brokers.Delivery{Topic: "orders", Incarnation: "abc", Partition: 3, Offset: 7}), "pos:orders abc/3/7"},
		"position without topic":                    {at(brokers.Delivery{Incarnation: "abc", Partition: -1, Offset: 0}), "pos:orders abc/-1/0"},
		"position of another topic":                 {at(brokers.Delivery{Topic: "orders-eu", Incarnation: "abc", Partition: 3, Offset: 7}), "pos:orders-eu abc/3/7"},
		"position by time of storing":               {at(brokers.Delivery{Topic: "orders", Time: stored, Partition: 3, Offset: 7}), "postime:orders 1700000000000000005/3/7"},
		"far position":                              {at(brokers.Delivery{Topic: "orders", Incarnation: "abc", Partition: math.MaxInt32, Offset: math.MaxInt64}), "pos:orders abc/2147483647/9223372036854775807"},
		"an id of printable ASCII":                  {binary("x", "ce_id", "!~"), "ce:/shop !~"},
		"an id with a space":                        {binary("x", "ce_id", "a b"), "sha256:"},
		"a source with a space":                     {binary("x", "ce_source", "a b"), "sha256:"},
		"an id beyond ASCII":                        {binary("x", "ce_id", "é"), "sha256:"},
		"an id that is not UTF-8":                   {binary("x", "ce_id", "\xff"), "sha256:"},
		"an id with a zero byte":                    {binary("x", "ce_id", "a\x00"), "sha256:"},
		"an id that just fits":                      {binary("x", "ce_id", strings.Repeat("a", 246)), "ce:/shop " + strings.Repeat("a", 246)},
		"an id that just does not":                  {binary("x", "ce_id", strings.Repeat("a", 247)), "sha256:"},
		"a huge id":                                 {binary("x", "ce_id", strings.Repeat("a", 1<<20)), "sha256:"},
		"a frozen id, which anyone could have sent": {withUUID(received("x", event.MetaFrozenID, "ce:/bank 1"), "u"), "uuid:orders u"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := event.Identify(tt.msg, "orders")
			switch {
			case err != nil:
				t.Fatal(err)
			case tt.want == "sha256:":
				if len(got) != len("sha256:")+64 || !strings.HasPrefix(got, tt.want) {
					t.Errorf("got %q, want a hash", got)
				}
			case got != tt.want:
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if again, _ := event.Identify(tt.msg.Copy(), "orders"); !strings.HasPrefix(tt.want, "pos") && again != got {
				t.Errorf("a second time: got %q, want %q", again, got)
			}
		})
	}
}

// Foreign producers send neither an id nor a UUID. The consumer keyed all its messages with "": the first had
// its effect, every other one was a duplicate. An id is never empty, and where none can be had the error
// says what was missing.
func TestI5AMessageWithoutAnyIDIsRefusedAndNeverKeyedEmpty(t *testing.T) {
	for name, tt := range map[string]struct {
		msg   *message.Message
		topic string
		want  []string
	}{
		"no delivery":        {received("x"), "orders", []string{"no ce_source with ce_id, no UUID", "no brokers.Delivery"}},
		"empty ids":          {received("x", "ce_id", "", "ce_source", ""), "orders", []string{"brokers.Delivery"}},
		"no offset":          {delivered(received("x"), &brokers.Delivery{Topic: "orders", Incarnation: "i", Partition: -1, Offset: -1}), "orders", []string{"no offset"}},
		"no incarnation":     {delivered(received("x"), &brokers.Delivery{Topic: "orders", Offset: 3}), "orders", []string{"no topic incarnation or time"}},
		"no topic":           {delivered(received("x"), &brokers.Delivery{Incarnation: "i"}), "", []string{"no topic"}},
		"nothing of it":      {delivered(received("x"), &brokers.Delivery{Offset: -1}), "", []string{"no offset, no topic incarnation or time, no topic"}},
		"an equal payload":   {received(`{"id":"1"}`), "orders", []string{"brokers.Delivery"}},
		"broken, structured": {structured(`{"id":"1","source`), "orders", []string{"brokers.Delivery"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := event.Identify(tt.msg, tt.topic)
			if got != "" {
				t.Errorf("got %q, want none", got)
			}
			for _, want := range tt.want {
				wantError(t, tt.msg.Metadata, err, "id", want)
			}
		})
	}
}

// A topic was deleted and created again. Its offsets began at 0 again, and its first messages were skipped as
// duplicates of the old topic's. The incarnation is part of the id; where the broker tells none, the time
// of storing is; where it tells neither, a position is not an id.
func TestK11ARecreatedTopicGivesNewIDs(t *testing.T) {
	id := func(d brokers.Delivery) string {
		got, err := event.Identify(delivered(received("x"), &d), "orders")
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if a, b := id(brokers.Delivery{Incarnation: "first"}), id(brokers.Delivery{Incarnation: "second"}); a == b {
		t.Errorf("both incarnations gave %q", a)
	}
	if a, b := id(brokers.Delivery{Time: time.Unix(1, 0)}), id(brokers.Delivery{Time: time.Unix(2, 0)}); a == b {
		t.Errorf("both times gave %q", a)
	}
	if a, b := id(brokers.Delivery{Incarnation: "5"}), id(brokers.Delivery{Time: time.Unix(0, 5)}); a == b {
		t.Errorf("an incarnation and a time gave %q", a)
	}
	_, err := event.Identify(delivered(received("x"), &brokers.Delivery{Topic: "orders"}), "orders")
	wantError(t, "position alone", err, "id", "incarnation")
}

func TestIdentifyTakesTheDeliverysTopicWhereNoneIsGiven(t *testing.T) {
	msg := delivered(withUUID(received("x"), "u"), &brokers.Delivery{Topic: "orders"})
	if got, err := event.Identify(msg, ""); err != nil || got != "uuid:orders u" {
		t.Errorf("got %q, %v", got, err)
	}
}

// Parts that run into each other would make one id of two messages, and one of them would be skipped.
func TestI10DifferentMessagesNeverShareAnID(t *testing.T) {
	seen := make(map[string]string)
	check := func(what, id string, err error) {
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if other, ok := seen[id]; ok {
			t.Errorf("%s and %s share the id %q", what, other, id)
		}
		seen[id] = what
	}
	parts := []string{"a", "b", "a b", "b c", "c", "a/b", "ce:a", "uuid:a", "1", "a#b", strings.Repeat("a", 300), strings.Repeat("a", 301)}
	for _, a := range parts {
		for _, b := range parts {
			id, err := event.Identify(binary("x", "ce_source", a, "ce_id", b), "orders")
			check("event "+a+"|"+b, id, err)
			id, err = event.Identify(withUUID(received("x"), b), a)
			check("uuid "+a+"|"+b, id, err)
			id, err = event.Identify(delivered(received("x"), &brokers.Delivery{Topic: a, Incarnation: b, Partition: 1}), "orders")
			check("position "+a+"|"+b, id, err)
		}
		id, err := event.NaturalID(a)
		check("natural "+a, id, err)
		id, err = event.Identify(withUUID(received("x"), a), "")
		check("uuid without topic "+a, id, err)
	}
	first, _ := event.Identify(withUUID(received("equal"), "1"), "orders")
	second, _ := event.Identify(withUUID(received("equal"), "2"), "orders")
	if first == second {
		t.Errorf("two messages of equal payload share the id %q", first)
	}
}

// The form is in inboxes: a change makes every message in flight take effect twice.
func TestIdentifyIsFrozen(t *testing.T) {
	got, err := event.Identify(binary("x", "ce_id", strings.Repeat("a", 300)), "orders")
	if want := "sha256:e598e20fd9878ca21618277e0796abe83965d79e3e6e0ba701087d7a55d31617"; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestIdentifyRedrivenBelievesTheFrozenID(t *testing.T) {
	msg := withUUID(received("x", event.MetaFrozenID, "pos:orders abc/3/7"), "u")
	if got, err := event.IdentifyRedriven(msg, "billing.redrive"); err != nil || got != "pos:orders abc/3/7" {
		t.Errorf("got %q, %v, want the frozen id", got, err)
	}
	delete(msg.Metadata, event.MetaFrozenID)
	if got, err := event.IdentifyRedriven(msg, "billing.redrive"); err != nil || got != "uuid:billing.redrive u" {
		t.Errorf("got %q, %v, want that of Identify", got, err)
	}
	for _, bad := range []string{strings.Repeat("a", 256), "a\x00", "é"} {
		_, err := event.IdentifyRedriven(received("x", event.MetaFrozenID, bad), "t")
		wantError(t, bad, err, event.MetaFrozenID, "not an id of Identify")
	}
}

func TestNaturalID(t *testing.T) {
	if got, err := event.NaturalID("invoice-7"); err != nil || got != "key:invoice-7" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := event.NaturalID(strings.Repeat("k", 300)); err != nil || len(got) > event.MaxIDBytes {
		t.Errorf("got %q, %v, want a hash", got, err)
	}
	_, err := event.NaturalID("")
	wantError(t, "", err, "id", "natural key is empty")
}
