package event_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
)

// received makes a message as an adapter does. Pairs are metadata keys and values.
func received(payload string, pairs ...string) *message.Message {
	msg := message.NewMessage("", []byte(payload))
	for i := 0; i < len(pairs); i += 2 {
		msg.Metadata[pairs[i]] = pairs[i+1]
	}
	return msg
}

func delivered(msg *message.Message, d *brokers.Delivery) *message.Message {
	msg.SetContext(brokers.WithDelivery(context.Background(), d))
	return msg
}

// binary makes a valid event in binary mode; later pairs win, and a value of "-" takes the key away.
func binary(payload string, pairs ...string) *message.Message {
	msg := received(payload, append([]string{
		"ce_specversion", "1.0", "ce_id", "42", "ce_source", "/shop", "ce_type", "order.placed",
	}, pairs...)...)
	for k, v := range msg.Metadata {
		if v == "-" {
			delete(msg.Metadata, k)
		}
	}
	return msg
}

func structured(payload string, pairs ...string) *message.Message {
	return received(payload, append([]string{"content-type", "application/cloudevents+json"}, pairs...)...)
}

// wantError checks the shape that every error of the package has.
func wantError(t *testing.T, in any, err error, field, text string) {
	t.Helper()
	var e *event.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v\n got error %v\nwant an *event.Error of field %q", in, err, field)
	}
	if e.Field != field || !strings.Contains(err.Error(), text) {
		t.Errorf("%v\n got error %v (field %q)\nwant field %q and %q", in, err, e.Field, field, text)
	}
	if r := new(classify.Classifier).Classify(err); r.Verdict != classify.VerdictPoison {
		t.Errorf("%v\n got verdict %v of %v\nwant %v", in, r.Verdict, err, classify.VerdictPoison)
	}
	if len(err.Error()) > 512 {
		t.Errorf("%v\n got an error of %d bytes, want it bounded", in, len(err.Error()))
	}
}

func TestParseReadsBinaryMode(t *testing.T) {
	msg := binary(`{"n":1}`,
		"ce_time", "2026-02-03T04:05:06.789+01:00", "ce_subject", "order/7", "ce_dataschema", "https://x.test/s",
		"content-type", "application/json; charset=utf-8", "ce_schemaversion", "3", "ce_partitionkey", "7",
		"ce_sequence", "0012", "ce_correlationid", "cor", "ce_causationid", "cau", "ce_tenant", "blue",
		"traceparent", "00-1-2-3", "headrace_attempt", "9")
	got, err := event.Parse(msg)
	if err != nil {
		t.Fatal(err)
	}
	want := event.Envelope{
		ID: "42", Source: "/shop", Type: "order.placed", Subject: "order/7", DataSchema: "https://x.test/s",
		ContentType: "application/json; charset=utf-8", PartitionKey: "7", Sequence: "0012",
		CorrelationID: "cor", CausationID: "cau", SchemaVersion: 3, Time: got.Time,
		Extensions: map[string]string{"tenant": "blue"}, Data: []byte(`{"n":1}`),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if want := time.Date(2026, 2, 3, 3, 5, 6, 789e6, time.UTC); !got.Time.Equal(want) {
		t.Errorf("time: got %v, want %v", got.Time, want)
	}
}

func TestParseTakesAMessageWithoutEventAttributesAsPlain(t *testing.T) {
	for name, tt := range map[string]struct {
		msg  *message.Message
		want event.Envelope
	}{
		"nothing at all": {&message.Message{}, event.Envelope{SchemaVersion: 1}},
		"foreign metadata": {
			received("x", "content-type", "text/plain", "name", "OrderPlaced", "ce", "no", "CE_ID", "no"),
			event.Envelope{SchemaVersion: 1, ContentType: "text/plain", Data: []byte("x")},
		},
		"attributes that a middleware adds": {
			received("x", "ce_correlationid", "c", "ce_causationid", "d", "ce_partitionkey", "k", "ce_subject", "s"),
			event.Envelope{SchemaVersion: 1, CorrelationID: "c", CausationID: "d", PartitionKey: "k", Subject: "s", Data: []byte("x")},
		},
		"Watermill's correlation id": {
			received("x", "correlation_id", "w"),
			event.Envelope{SchemaVersion: 1, CorrelationID: "w", Data: []byte("x")},
		},
		"ours before Watermill's": {
			received("x", "correlation_id", "w", "ce_correlationid", "c"),
			event.Envelope{SchemaVersion: 1, CorrelationID: "c", Data: []byte("x")},
		},
		"an empty correlation id, as Watermill's middleware writes it": {
			received("x", "correlation_id", ""),
			event.Envelope{SchemaVersion: 1, Data: []byte("x")},
		},
		"a correlation id that no event may have": {
			received("x", "correlation_id", "a\x00b"),
			event.Envelope{SchemaVersion: 1, Data: []byte("x")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := event.Parse(tt.msg)
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, tt.want)
			}
			if typ, err := event.TypeOf(tt.msg); typ != "" || err != nil {
				t.Errorf("TypeOf: got %q, %v, want none", typ, err)
			}
		})
	}
}

func TestParseRefusesAnInvalidEnvelope(t *testing.T) {
	long := strings.Repeat("x", event.MaxAttributeBytes+1)
	for name, tt := range map[string]struct {
		msg         *message.Message
		field, text string
	}{
		"no specversion":               {binary("x", "ce_specversion", "-"), "ce_specversion", "missing"},
		"another specversion":          {binary("x", "ce_specversion", "0.3"), "ce_specversion", `"0.3": not supported`},
		"no id":                        {binary("x", "ce_id", "-"), "ce_id", "missing"},
		"an empty id":                  {binary("x", "ce_id", ""), "ce_id", "empty"},
		"an empty source":              {binary("x", "ce_source", ""), "ce_source", "empty"},
		"an empty type":                {binary("x", "ce_type", ""), "ce_type", "empty"},
		"an id alone":                  {received("x", "ce_id", "1"), "ce_specversion", "missing"},
		"an empty id alone":            {received("x", "ce_id", ""), "ce_specversion", "missing"},
		"all four empty":               {received("x", "ce_id", "", "ce_source", "", "ce_type", "", "ce_specversion", ""), "ce_specversion", "empty"},
		"no time of RFC 3339":          {binary("x", "ce_time", "yesterday"), "ce_time", `"yesterday": not an RFC 3339 time`},
		"a time without a zone":        {binary("x", "ce_time", "2026-02-03T04:05:06"), "ce_time", "RFC 3339"},
		"a one-digit hour":             {binary("x", "ce_time", "2026-02-03T4:05:06Z"), "ce_time", "RFC 3339"},
		"a comma":                      {binary("x", "ce_time", "2026-02-03T04:05:06,5Z"), "ce_time", "RFC 3339"},
		"an impossible zone":           {binary("x", "ce_time", "2026-02-03T04:05:06+24:00"), "ce_time", "RFC 3339"},
		"impossible minutes of a zone": {binary("x", "ce_time", "2026-02-03T04:05:06+01:60"), "ce_time", "RFC 3339"},
		"a lax time":                   {binary("x", "ce_time", "2026-02-03T4:05:06,5Z"), "ce_time", "RFC 3339"},
		"schema version 0":             {binary("x", "ce_schemaversion", "0"), "ce_schemaversion", `"0": not a whole number`},
		"schema version +1":            {binary("x", "ce_schemaversion", "+1"), "ce_schemaversion", "whole"},
		"schema version v2":            {binary("x", "ce_schemaversion", "v2"), "ce_schemaversion", "whole"},
		"schema version beyond int":    {binary("x", "ce_schemaversion", "2147483648"), "ce_schemaversion", "whole"},
		"an upper-case extension":      {binary("x", "ce_Tenant", "a"), "ce_Tenant", "attribute name"},
		"an extension with a line":     {binary("x", "ce_my_ext", "a"), "ce_my_ext", "attribute name"},
		"an extension without name":    {binary("x", "ce_", "a"), "ce_", "without a name"},
		"an extension called data":     {binary("x", "ce_data", "a"), "ce_data", "reserved"},
		"a control character":          {binary("x", "ce_type", "a\x00b"), "ce_type", "control"},
		"a C1 control character":       {binary("x", "ce_subject", "a\u0085b"), "ce_subject", "control"},
		"a noncharacter":               {binary("x", "ce_subject", "a\ufffeb"), "ce_subject", "forbids"},
		"another noncharacter":         {binary("x", "ce_subject", "a\ufdd0b"), "ce_subject", "forbids"},
		"bytes that are not UTF-8":     {binary("x", "ce_id", "a\xff"), "ce_id", "UTF-8"},
		"a huge header":                {binary("x", "ce_subject", long), "ce_subject", "65537 bytes long, at most 65536"},
		"a huge name of a header":      {binary("x", "ce_"+strings.Repeat("A", 1<<20), "v"), "ce_" + strings.Repeat("A", 61) + "...", "attribute name"},
		"a plain message's bad time":   {received("x", "ce_time", "now"), "ce_time", "RFC 3339"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := event.Parse(tt.msg)
			wantError(t, tt.msg.Metadata, err, tt.field, tt.text)
			if string(e.Data) != "x" {
				t.Errorf("got data %q, want the payload as it is", e.Data)
			}
		})
	}
}

// Dead letters are grouped by their error: it must not depend on the order of a map.
func TestParseGivesTheSameErrorEachTime(t *testing.T) {
	msg := binary("x", "ce_A", "1", "ce_B", "2", "ce_time", "never", "ce_schemaversion", "x", "ce_id", "")
	_, first := event.Parse(msg)
	for range 50 {
		if _, err := event.Parse(msg); err.Error() != first.Error() {
			t.Fatalf("got %v, then %v", first, err)
		}
	}
}

func TestParseReadsEmptyOptionalAttributesAsAbsent(t *testing.T) {
	e, err := event.Parse(binary("x", "ce_time", "", "ce_subject", "", "ce_schemaversion", "", "ce_tenant", "", "content-type", ""))
	want := event.Envelope{ID: "42", Source: "/shop", Type: "order.placed", SchemaVersion: 1, Data: []byte("x")}
	if err != nil || !reflect.DeepEqual(e, want) {
		t.Errorf("got  %+v, %v\nwant %+v", e, err, want)
	}
}

// In binary mode the content type has a key outside of the ce_ attributes, but some write it there too.
func TestParseReadsTheContentTypeOfBinaryMode(t *testing.T) {
	for want, msg := range map[string]*message.Message{
		"text/plain": binary("x", "content-type", "text/plain", "ce_datacontenttype", "text/html"),
		"text/html":  binary("x", "ce_datacontenttype", "text/html"),
	} {
		if e, err := event.Parse(msg); err != nil || e.ContentType != want {
			t.Errorf("%v: got %q, %v, want %q", msg.Metadata, e.ContentType, err, want)
		}
	}
}

func TestParseTakesTimesInLowerCase(t *testing.T) {
	e, err := event.Parse(binary("x", "ce_time", "2026-02-03t04:05:06z"))
	if want := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC); err != nil || !e.Time.Equal(want) {
		t.Errorf("got %v, %v, want %v", e.Time, err, want)
	}
}

func TestParseTakesAHugeHeaderWithinTheLimit(t *testing.T) {
	long := strings.Repeat("ü", event.MaxAttributeBytes/2)
	if e, err := event.Parse(binary("x", "ce_subject", long)); err != nil || e.Subject != long {
		t.Errorf("got %d bytes, %v, want %d", len(e.Subject), err, len(long))
	}
}

// The value of a bad attribute is cut at a rune, so that the error stays UTF-8.
func TestErrorCutsAtARune(t *testing.T) {
	_, err := event.Parse(binary("x", "ce_time", "x"+strings.Repeat("é", 60)))
	var e *event.Error
	if !errors.As(err, &e) || e.Value != "x"+strings.Repeat("é", 31)+"..." {
		t.Errorf("got %q, want 63 bytes and dots", e.Value)
	}
}

// A header came twice. The adapter keeps both in Headers, which metadata cannot hold, and puts the one
// that its broker's clients would take into Metadata: that one counts.
func TestParseReadsMetadataAndNotTheHeadersReceived(t *testing.T) {
	msg := delivered(binary("x", "ce_id", "last"), &brokers.Delivery{Headers: []brokers.Header{
		{Key: "ce_id", Value: []byte("first")}, {Key: "ce_id", Value: []byte("last")}, {Key: "ce_time", Value: nil},
	}})
	if e, err := event.Parse(msg); err != nil || e.ID != "last" {
		t.Errorf("got %q, %v, want the last", e.ID, err)
	}
}

// The adapter could not decode what it received. The metadata is empty then, so the message could pass for
// a plain one of an unknown type, which the runtime acks. The error comes first, the bytes are kept.
func TestD1UndecodableBytesAreAPermanentErrorAndStayAsTheyAre(t *testing.T) {
	broken := fmt.Errorf("header 3: length beyond the end")
	for _, msg := range []*message.Message{received("\xff\x00"), binary("\xff\x00"), structured("\xff\x00")} {
		delivered(msg, &brokers.Delivery{Topic: "orders", Offset: 5, DecodeError: broken})
		e, err := event.Parse(msg)
		wantError(t, msg.Metadata, err, "payload", `"2 bytes": header 3`)
		if !errors.Is(err, broken) {
			t.Errorf("got %v, want it to wrap %v", err, broken)
		}
		if string(e.Data) != "\xff\x00" {
			t.Errorf("got data %q, want the bytes received", e.Data)
		}
		_, err = event.TypeOf(msg)
		wantError(t, msg.Metadata, err, "payload", "header 3")
		v, e, err := event.Decode[[]byte](nil, msg)
		wantError(t, msg.Metadata, err, "payload", "header 3")
		if v != nil || string(e.Data) != "\xff\x00" {
			t.Errorf("got %q and data %q", v, e.Data)
		}
	}
}

func TestTypeOf(t *testing.T) {
	for name, tt := range map[string]struct {
		msg         *message.Message
		want        string
		field, text string
	}{
		"binary":                          {binary("x"), "order.placed", "", ""},
		"binary, the rest wrong":          {binary("x", "ce_id", "-", "ce_time", "never"), "order.placed", "", ""},
		"binary without type":             {binary("x", "ce_type", "-"), "", "ce_type", "missing"},
		"binary with an empty type":       {binary("x", "ce_type", ""), "", "ce_type", "missing"},
		"binary with a control":           {binary("x", "ce_type", "a\nb"), "", "ce_type", "control"},
		"structured":                      {structured(`{"id":"1", "data":{"type":"inner"}, "type" : "a.b"}`), "a.b", "", ""},
		"structured, broken after it":     {structured(`{"type":"a.b","data":`), "a.b", "", ""},
		"structured, escaped name":        {structured(`{"\u0074ype":"a.b"}`), "a.b", "", ""},
		"structured, escaped type":        {structured(`{"type":"a\u002eb"}`), "a.b", "", ""},
		"structured before ce_type":       {received(`{"type":"a.b"}`, "content-type", "Application/CloudEvents+JSON; charset=utf-8", "ce_type", "x"), "a.b", "", ""},
		"structured without type":         {structured(`{"id":"1"}`), "", "type", "missing"},
		"structured with a number":        {structured(`{"type":5}`), "", "type", `"5": must be a string`},
		"structured with an empty type":   {structured(`{"type":""}`), "", "type", "missing"},
		"structured and no JSON":          {structured(`<event/>`), "", "payload", "one JSON object"},
		"structured and empty":            {structured(``), "", "payload", "one JSON object"},
		"structured in an unknown format": {received(`x`, "content-type", "application/cloudevents+avro"), "", "content-type", "not supported"},
		"structured and a batch":          {received(`[]`, "content-type", "application/cloudevents-batch+json"), "", "content-type", "one event per message"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := event.TypeOf(tt.msg)
			if tt.field != "" {
				wantError(t, tt.msg.Metadata, err, tt.field, tt.text)
			} else if err != nil || got != tt.want {
				t.Errorf("%q\n got %q, %v\nwant %q", tt.msg.Payload, got, err, tt.want)
			}
		})
	}
}

func TestKeyOf(t *testing.T) {
	for name, tt := range map[string]struct {
		msg  *message.Message
		want string
	}{
		"partition key first":           {binary("", "ce_partitionkey", "p", "ce_subject", "s"), "p"},
		"then subject":                  {binary("", "ce_subject", "s"), "s"},
		"a plain message":               {received("", "ce_subject", "s"), "s"},
		"none":                          {binary(""), ""},
		"structured":                    {structured(`{"subject":"s","partitionkey":"p"}`), "p"},
		"structured with a number":      {structured(`{"subject":"s","partitionkey":42}`), "42"},
		"structured with subject alone": {structured(`{"subject":"s"}`), "s"},
		"structured and broken":         {structured(`{"subj`), ""},
		"its metadata's first":          {structured(`{"partitionkey":"p"}`, "ce_partitionkey", "m"), "m"},
		"its metadata's at last":        {structured(`{}`, "ce_subject", "m"), "m"},
		"its own before that":           {structured(`{"subject":"s"}`, "ce_subject", "m"), "s"},
	} {
		if got := event.KeyOf(tt.msg); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}
