package outbox_test

import (
	"encoding/json"
	"maps"
	"testing"

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
