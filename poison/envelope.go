package poison

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
)

// envelope is the body of a dead letter whose original does not fit into metadata: a wire contract. Bytes
// are base64, and null where they are nil.
type envelope struct {
	Version       int        `json:"version"`
	Consumer      string     `json:"consumer"`
	Topic         text       `json:"topic"`
	Incarnation   text       `json:"incarnation,omitempty"`
	Partition     int32      `json:"partition"`
	Offset        int64      `json:"offset"`
	Time          time.Time  `json:"time,omitzero"`
	Key           []byte     `json:"key"`
	UUID          text       `json:"uuid,omitempty"`
	Metadata      [][2]text  `json:"metadata"` // null: there was none
	Headers       [][2]*text `json:"headers"`  // null: the metadata says it all
	Payload       []byte     `json:"payload"`
	MessageID     text       `json:"message_id,omitempty"`
	Attempts      int        `json:"attempts"`
	Deliveries    int        `json:"deliveries,omitempty"`
	Deaths        int        `json:"deaths"`
	Verdict       string     `json:"verdict"`
	ErrorType     string     `json:"error_type"`
	Error         string     `json:"error"`
	Stack         string     `json:"stack,omitempty"`
	FirstFailure  time.Time  `json:"first_failure"`
	LastFailure   time.Time  `json:"last_failure"`
	CorrelationID string     `json:"correlation_id,omitempty"`
	TraceParent   string     `json:"traceparent,omitempty"`
	Fingerprint   string     `json:"fingerprint"`
	DecodeError   string     `json:"decode_error,omitempty"`
	Hops          int        `json:"hops,omitempty"`
	Batch         string     `json:"batch,omitempty"`
	Letter        string     `json:"letter,omitempty"`
	Reference     bool       `json:"reference,omitempty"` // in documents alone
}

// text is a string that JSON cannot always hold: {"base64":"..."} if it is not valid UTF-8.
type text string

// MarshalJSON implements json.Marshaler.
func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(struct {
		Base64 []byte `json:"base64"`
	}{[]byte(t)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var encoded struct {
			Base64 []byte `json:"base64"`
		}
		err := json.Unmarshal(b, &encoded)
		*t = text(encoded.Base64)
		return err
	}
	return json.Unmarshal(b, (*string)(t))
}

func (r *Record) envelope() *envelope {
	e := &envelope{
		Version: Version, Consumer: r.Consumer,
		Topic: text(r.Topic), Incarnation: text(r.Incarnation), Partition: r.Partition, Offset: r.Offset, Time: r.Time.UTC(),
		Key: r.Key, UUID: text(r.UUID), Headers: headerPairs(r.Headers), Payload: r.Payload,
		MessageID: text(r.MessageID), Attempts: r.Attempts, Deliveries: r.Deliveries, Deaths: r.Deaths,
		Verdict: r.Verdict.String(), ErrorType: r.ErrorType, Error: r.Error, Stack: r.Stack,
		FirstFailure: r.FirstFailure.UTC(), LastFailure: r.LastFailure.UTC(),
		CorrelationID: r.CorrelationID, TraceParent: r.TraceParent, Fingerprint: r.Fingerprint,
		DecodeError: r.DecodeError, Hops: r.Hops, Batch: r.Batch, Letter: r.Letter, Reference: r.Reference,
	}
	if r.Metadata != nil {
		e.Metadata = make([][2]text, 0, len(r.Metadata))
		for _, k := range slices.Sorted(maps.Keys(r.Metadata)) {
			e.Metadata = append(e.Metadata, [2]text{text(k), text(r.Metadata[k])})
		}
	}
	return e
}

func (e *envelope) record(id string) (Record, error) {
	r := Record{
		ID: id, Version: e.Version, Consumer: e.Consumer,
		Topic: string(e.Topic), Incarnation: string(e.Incarnation), Partition: e.Partition, Offset: e.Offset, Time: e.Time,
		Key: e.Key, UUID: string(e.UUID), Payload: e.Payload,
		MessageID: string(e.MessageID), Attempts: e.Attempts, Deliveries: e.Deliveries, Deaths: e.Deaths,
		ErrorType: e.ErrorType, Error: e.Error, Stack: e.Stack,
		FirstFailure: e.FirstFailure, LastFailure: e.LastFailure,
		CorrelationID: e.CorrelationID, TraceParent: e.TraceParent, Fingerprint: e.Fingerprint,
		DecodeError: e.DecodeError, Hops: e.Hops, Batch: e.Batch, Letter: e.Letter, Reference: e.Reference,
	}
	if e.Metadata != nil {
		r.Metadata = make(map[string]string, len(e.Metadata))
		for _, pair := range e.Metadata {
			r.Metadata[string(pair[0])] = string(pair[1])
		}
	}
	var err error
	if r.Headers, err = headersOf(e.Headers); err != nil {
		return r, fmt.Errorf("headers: %w", err)
	}
	r.Verdict, err = verdictNamed(e.Verdict)
	return r, err
}

func headerPairs(headers []brokers.Header) [][2]*text {
	if headers == nil {
		return nil
	}
	pairs := make([][2]*text, len(headers))
	for i, h := range headers {
		pairs[i][0] = new(text(h.Key))
		if h.Value != nil {
			pairs[i][1] = new(text(h.Value))
		}
	}
	return pairs
}

func headersOf(pairs [][2]*text) ([]brokers.Header, error) {
	if pairs == nil {
		return nil, nil
	}
	headers := make([]brokers.Header, len(pairs))
	for i, pair := range pairs {
		if pair[0] == nil {
			return nil, fmt.Errorf("the key of header %d is null", i)
		}
		headers[i].Key = string(*pair[0])
		if pair[1] != nil {
			headers[i].Value = []byte(*pair[1])
		}
	}
	return headers, nil
}

// verdictNamed is the inverse of classify.Verdict.String.
func verdictNamed(name string) (classify.Verdict, error) {
	for v := classify.VerdictNone; v <= classify.VerdictStop; v++ {
		if v.String() == name {
			return v, nil
		}
	}
	return classify.VerdictNone, fmt.Errorf("verdict %q is unknown", name)
}
