package event_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
)

// checkRead holds what is true of any message whatever: no panic, typed errors, the bytes kept.
func checkRead(t *testing.T, msg *message.Message) (event.Envelope, error) {
	t.Helper()
	payload, metadata := bytes.Clone(msg.Payload), len(msg.Metadata)
	e, err := event.Parse(msg)
	typ, typeErr := event.TypeOf(msg)
	event.KeyOf(msg)
	id, idErr := event.Identify(msg, "t")
	_, _, decodeErr := event.Decode[map[string]any](nil, msg)

	for _, err := range []error{err, typeErr, idErr, decodeErr} {
		var typed *event.Error
		if err == nil {
			continue
		}
		if !errors.As(err, &typed) {
			t.Fatalf("got %v, want an *event.Error", err)
		}
		if len(typed.Field) > 80 || len(typed.Value) > 80 {
			t.Fatalf("got a field of %d and a value of %d bytes, want them bounded", len(typed.Field), len(typed.Value))
		}
	}
	if (id == "") != (idErr != nil) || len(id) > event.MaxIDBytes || !utf8.ValidString(id) {
		t.Fatalf("got id %q, %v", id, idErr)
	}
	if err == nil && (typeErr != nil || typ != e.Type) {
		t.Fatalf("TypeOf: got %q, %v, Parse: %q", typ, typeErr, e.Type)
	}
	if err == nil && (e.Type == "") != (e.ID == "" || e.Source == "") {
		t.Fatalf("got half an event: %+v", e)
	}
	if err != nil && !bytes.Equal(e.Data, payload) {
		t.Fatalf("got data %q with the error, want the payload", e.Data)
	}
	if !bytes.Equal(msg.Payload, payload) || len(msg.Metadata) != metadata {
		t.Fatalf("the message was changed: %q, at first %q", msg.Payload, payload)
	}
	if err == nil && e.Type != "" {
		checkWritten(t, e)
	}
	return e, err
}

// checkWritten: an event that was read and is written again is the same event.
func checkWritten(t *testing.T, e event.Envelope) {
	t.Helper()
	opts := []event.Option{
		event.WithID(e.ID), event.WithSource(e.Source), event.WithSubject(e.Subject), event.WithKey(e.PartitionKey),
		event.WithSequence(e.Sequence), event.WithDataSchema(e.DataSchema), event.WithContentType(e.ContentType),
		event.WithCorrelation(e.CorrelationID), event.WithCausation(e.CausationID),
		event.WithSchemaVersion(e.SchemaVersion), event.WithTime(e.Time),
	}
	for name, value := range e.Extensions {
		opts = append(opts, event.WithExtension(name, value))
	}
	msg, err := event.New(t.Context(), e.Type, e.Data, opts...)
	if err != nil {
		return // New is stricter than Parse: what it makes must fit into any broker
	}
	got, err := event.Parse(msg)
	if err != nil {
		t.Fatalf("%+v is written as %q and cannot be read: %v", e, msg.Metadata, err)
	}
	// New fills in what is missing.
	if e.Time.IsZero() || e.Time.Equal(got.Time) {
		e.Time = got.Time
	}
	if e.CorrelationID == "" {
		e.CorrelationID = got.CorrelationID
	}
	if e.ContentType == "" {
		e.ContentType = got.ContentType
	}
	if !bytes.Equal(got.Data, e.Data) {
		t.Fatalf("data: got %q, want %q", got.Data, e.Data)
	}
	got.Data = e.Data // nil or empty
	if !reflect.DeepEqual(got, e) {
		t.Fatalf("written and read again:\n%+v\nwant\n%+v", got, e)
	}
}

func FuzzParseBinary(f *testing.F) {
	f.Add("1.0", "1", "/s", "t", "2026-02-03T04:05:06Z", "1", "x", "v", "application/json", []byte(`{}`))
	f.Add("1.0", "", "/s", "t", "2026-02-03T4:05:06,1+24:99", "-1", "Data", "\xff", "application/cloudevents", []byte(`{`))
	f.Add("", "\x00", " ", "é", "z", "99999999999", "_", "", ";", []byte(nil))
	f.Fuzz(func(t *testing.T, sv, id, source, typ, at, version, name, value, ct string, payload []byte) {
		msg := message.NewMessage("", payload)
		for k, v := range map[string]string{
			"ce_specversion": sv, "ce_id": id, "ce_source": source, "ce_type": typ, "ce_time": at,
			"ce_schemaversion": version, "ce_" + name: value, "content-type": ct,
		} {
			if v != "" {
				msg.Metadata[k] = v
			}
		}
		_, _ = checkRead(t, msg)
	})
}

// FuzzParseStructured holds our walk over JSON against encoding/json's.
func FuzzParseStructured(f *testing.F) {
	const head = `{"specversion":"1.0","id":"1","source":"/s","type":"t"`
	for _, rest := range []string{
		`}`, `,"data":{"a":[1,"}"]}}`, `,"data_base64":"AP8="}`, `,"datacontenttype":"text/plain","data":"\u00e9"}`,
		`,"x":true,"y":-5,"z":null}`, `,"x":"\ud83d\ude00"}`, `,"x":"\ud83d"}`, `,"a\u0062":"c"}`, `,"data":null}`, ` , "data" : [ ] } `, `,`, `,"x":"\`,
	} {
		f.Add([]byte(head + rest))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		e, err := checkRead(t, structured(string(payload)))
		if err != nil {
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(bytes.TrimPrefix(payload, []byte("\xef\xbb\xbf")), &want); err != nil {
			t.Fatalf("%q: we take what encoding/json refuses: %v", payload, err)
		}
		text := func(name string) string {
			raw := string(want[name])
			if !strings.HasPrefix(raw, `"`) {
				return strings.TrimPrefix(raw, "null")
			}
			var s string
			if err := json.Unmarshal(want[name], &s); err != nil {
				t.Fatalf("%q: %v", payload, err)
			}
			return s
		}
		for name, got := range map[string]string{
			"id": e.ID, "source": e.Source, "type": e.Type, "subject": e.Subject, "dataschema": e.DataSchema,
			"datacontenttype": e.ContentType, "partitionkey": e.PartitionKey, "sequence": e.Sequence,
			"correlationid": e.CorrelationID, "causationid": e.CausationID,
		} {
			if got != text(name) {
				t.Fatalf("%q: %s: got %q, want %q", payload, name, got, text(name))
			}
		}
		for name, got := range e.Extensions {
			if got != text(name) {
				t.Fatalf("%q: %s: got %q, want %q", payload, name, got, text(name))
			}
		}
		switch raw, ok := want["data"]; {
		case ok && (e.ContentType == "" || e.ContentType == "application/json"):
			if !bytes.Equal(e.Data, raw) {
				t.Fatalf("%q: data: got %q, want %q", payload, e.Data, raw)
			}
		case ok && string(e.Data) != text("data") && e.ContentType == "text/plain":
			t.Fatalf("%q: data: got %q, want %q", payload, e.Data, text("data"))
		case !ok:
			if b, err := base64.StdEncoding.DecodeString(text("data_base64")); err != nil || !bytes.Equal(e.Data, b) {
				t.Fatalf("%q: data: got %q, want %q, %v", payload, e.Data, b, err)
			}
		}
	})
}

// FuzzNew: what New accepts, Parse reads back as it was.
func FuzzNew(f *testing.F) {
	f.Add("t", "1", "/s", "subject", "key", "x", "value", int64(1), 1, []byte(`{}`))
	f.Add("", "\xff", "a b", "\x00", "é", "ID", "", int64(-1<<62), 0, []byte(nil))
	f.Fuzz(func(t *testing.T, typ, id, source, subject, key, name, value string, at int64, version int, data []byte) {
		msg, err := roundTrip{typ, id, source, subject, key, name, value, at, version, data}.check()
		if err != nil {
			t.Fatalf("%v: %v", msg, err)
		}
	})
}
