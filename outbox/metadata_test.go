package outbox_test

import (
	"encoding/json"
	"maps"
	"testing"
	"unicode/utf8"

	"github.com/headrace-go/headrace/outbox"
)

// FuzzDecodeMetadata holds the decoder against encoding/json: on anything, and on what EncodeMetadata made.
func FuzzDecodeMetadata(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a":"b"}`, `{"a":"b","c":""}`, `{"":"x"}`, `{"a":"b",}`, `{"a":"b"}}`, `{"a":"b"`, `{"a" : "b"}`, `{"a":1}`,
		`{"a":"b","a":"c"}`, `{"a":"\u00e4"}`, `{"ä":"☃"}`, `{"a":"<"}`, `{"a":":","b":"\":\""}`, `null`, ``, `{`, `[]`, `{"a":"b"}x`, "{\"a\":\"\x01\"}", "{\"a\":\"\xff\"}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want := map[string]string{}
		wantErr := json.Unmarshal([]byte(text), &want)
		got, err := outbox.DecodeMetadata([]byte(text))
		if (err != nil) != (wantErr != nil) || err == nil && !maps.Equal(got, want) {
			t.Errorf("decode %q: got %q, %v; want %q, %v", text, got, err, want, wantErr)
		}
	})
}

// FuzzEncodeMetadata: what is encoded is JSON, and is decoded to the same.
func FuzzEncodeMetadata(f *testing.F) {
	for _, seed := range []string{"", "a", "\"", "\\", "<&>", "\x00", "\u2028", "ä☃", "a b", "~\x7f"} {
		f.Add(seed, "value", seed+seed)
		f.Add("key", seed, "")
	}
	f.Fuzz(func(t *testing.T, key, value, other string) {
		if !utf8.ValidString(key) || !utf8.ValidString(value) || !utf8.ValidString(other) {
			return // Add refuses them
		}
		want := map[string]string{key: value, other: key}
		text, err := outbox.EncodeMetadata(want)
		if err != nil {
			t.Fatalf("encode %q: %v", want, err)
		}
		got := map[string]string{}
		if err := json.Unmarshal([]byte(text), &got); err != nil || !maps.Equal(got, want) {
			t.Errorf("%q is encoded as %s: encoding/json reads %q, %v", want, text, got, err)
		}
		if got, err := outbox.DecodeMetadata([]byte(text)); err != nil || !maps.Equal(got, want) {
			t.Errorf("%q is encoded as %s and decoded to %q, %v", want, text, got, err)
		}
	})
}
