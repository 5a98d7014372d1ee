package poison_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/poison"
)

func TestDocumentKeepsTheRecord(t *testing.T) {
	full := poison.Record{
		ID: "d-1", Version: 1, Consumer: "billing", Topic: "orders", Incarnation: "i", Partition: 3, Offset: 41,
		Time: time.Unix(1, 2).UTC(), Key: []byte{0xff, 0}, Payload: []byte("\xffbytes\x00"),
		Metadata: map[string]string{"a": "b", "bad\xff": "\xfe"}, UUID: "u\xff",
		Headers:   []brokers.Header{{Key: "h", Value: nil}, {Key: "h", Value: []byte{0xff}}},
		MessageID: "ce:/shop 1", Attempts: 3, Deliveries: 2, Deaths: 1, Verdict: classify.VerdictPoison,
		ErrorType: "other", Error: "broken", FirstFailure: time.Unix(3, 0).UTC(), LastFailure: time.Unix(4, 0).UTC(),
		CorrelationID: "c", TraceParent: "00-1-2-01", Hops: 2, Batch: "b", Letter: "d-0", Fingerprint: "0123456789abcdef",
	}
	for name, want := range map[string]poison.Record{
		"full":      full,
		"tombstone": {Version: 1, Consumer: "c", Topic: "t", Partition: -1, Offset: -1, Metadata: map[string]string{}},
		"bare":      {Version: 1, Payload: []byte{}, Key: []byte{}},
	} {
		document, err := want.MarshalDocument()
		if err != nil {
			t.Fatalf("%s: MarshalDocument: %v", name, err)
		}
		got, err := poison.ParseDocument(want.ID, document, want.Payload)
		if err != nil {
			t.Fatalf("%s: ParseDocument: %v", name, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}

func TestDocumentOfALaterVersionIsRefused(t *testing.T) {
	for document, want := range map[string]string{
		`{"version":2}`:                   "version is 2",
		`{"version":0}`:                   "version is 0",
		`{`:                               "parse record d-1",
		`{"version":1,"verdict":"maybe"}`: `verdict "maybe"`,
	} {
		if _, err := poison.ParseDocument("d-1", []byte(document), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseDocument(%s): %v; want an error with %q", document, err, want)
		}
	}
}
