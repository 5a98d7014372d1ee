package redisstream

import (
	"bytes"
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

func FuzzEveryMessageArrivesAsItWasSent(f *testing.F) {
	f.Add("id", "key", "value", []byte("payload"), false)
	f.Add("", "h:payload", "\xff\x00", []byte{}, true)
	f.Add("x", "payload", "", []byte(nil), true)
	f.Add("x", "_watermill_message_uuid", "h:", []byte("\x00"), false)
	f.Fuzz(func(t *testing.T, uuid, key, value string, payload []byte, isNil bool) {
		sent := message.NewMessage(uuid, payload)
		if isNil {
			sent.Payload = nil
		}
		sent.Metadata[key] = value
		var fields []string
		for _, f := range encode(sent) {
			switch f := f.(type) {
			case string:
				fields = append(fields, f)
			case []byte:
				fields = append(fields, string(f))
			}
		}
		got, headers, err := decode(fields)
		if err != nil || headers != nil {
			t.Fatalf("decode(%q): %v, headers %v", fields, err, headers)
		}
		if got.UUID != uuid || !maps.Equal(got.Metadata, sent.Metadata) || !bytes.Equal(got.Payload, sent.Payload) || (got.Payload == nil) != (sent.Payload == nil) {
			t.Errorf("sent %q %v %q, got %q %v %q", uuid, sent.Metadata, sent.Payload, got.UUID, got.Metadata, got.Payload)
		}
	})
}

func TestOffsetsGrowWithIDs(t *testing.T) {
	ids := []string{"0-1", "1-0", "1700000000000-0", "1700000000000-1", "1700000000001-0"}
	last := int64(-1)
	for _, id := range ids {
		if got := offset(id); got <= last {
			t.Errorf("offset(%q) is %d, want more than %d", id, got, last)
		} else {
			last = got
		}
	}
	for _, id := range []string{"", "x", "1", "1-x", "18446744073709551615-0", "1-1048576"} {
		if got := offset(id); got != -1 {
			t.Errorf("offset(%q) is %d, want -1: it does not fit", id, got)
		}
	}
	if got, want := storedAt("1700000000123-4"), time.UnixMilli(1700000000123); !got.Equal(want) {
		t.Errorf("storedAt: %v, want %v", got, want)
	}
}

func TestAnswersOfAnotherFormAreErrors(t *testing.T) {
	for _, reply := range []any{
		"text",
		[]any{1, 2},
		[]any{"x"},
		[]any{[]any{"stream"}},
		[]any{[]any{"stream", "x"}},
		[]any{[]any{"stream", []any{"x"}}},
		[]any{[]any{"stream", []any{[]any{1, []any{}}}}},
		[]any{[]any{"stream", []any{[]any{"1-0", "x"}}}},
		[]any{[]any{"stream", []any{[]any{"1-0", []any{1}}}}},
		map[any]any{"stream": 1},
		map[any]any{"stream": []any{[]any{"1-0", []any{"a", "b"}, "many"}}},
	} {
		if entries, err := parseRead(reply); err == nil {
			t.Errorf("parseRead(%v): %v, want an error", reply, entries)
		}
	}
}
