package event_test

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
)

func mustNew(t *testing.T, ctx context.Context, eventType string, data any, opts ...event.Option) *message.Message {
	t.Helper()
	msg, err := event.New(ctx, eventType, data, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

func TestNewWritesEveryAttribute(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 7, time.FixedZone("", 3600))
	msg := mustNew(t, t.Context(), "invoice.created", order{"a", 5},
		event.WithID("i-1"), event.WithSource("/billing"), event.WithSubject("invoice/1"), event.WithKey("k"),
		event.WithSequence("9"), event.WithTime(at), event.WithSchemaVersion(2), event.WithDataSchema("https://x.test/s"),
		event.WithExtension("tenant", "blue"), event.WithCorrelation("c"), event.WithCausation("d"),
		event.WithContentType("application/vnd.invoice+json"))
	want := message.Metadata{
		"ce_specversion": "1.0", "ce_id": "i-1", "ce_source": "/billing", "ce_type": "invoice.created",
		"ce_time": "2026-02-03T03:05:06.000000007Z", "ce_subject": "invoice/1", "ce_dataschema": "https://x.test/s",
		"ce_schemaversion": "2", "ce_partitionkey": "k", "ce_sequence": "9", "ce_tenant": "blue",
		"ce_correlationid": "c", "ce_causationid": "d", "content-type": "application/vnd.invoice+json",
	}
	if !reflect.DeepEqual(msg.Metadata, want) {
		t.Errorf("got  %v\nwant %v", msg.Metadata, want)
	}
	if msg.UUID != "i-1" || string(msg.Payload) != `{"id":"a","amount":5}` || msg.Context() != t.Context() {
		t.Errorf("got UUID %q, payload %s", msg.UUID, msg.Payload)
	}
}

func TestNewOutsideOfAHandler(t *testing.T) {
	ctx := event.ContextWithSource(t.Context(), "/web")
	before := time.Now()
	first, second := mustNew(t, ctx, "a", nil), mustNew(t, event.ContextWithCorrelation(ctx, "request-1"), "a", nil)
	e, err := event.Parse(first)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := uuid.Parse(e.ID); err != nil || id.Version() != 7 || e.ID != first.UUID {
		t.Errorf("id: got %q with UUID %q, want a UUID of version 7", e.ID, first.UUID)
	}
	if first.UUID == second.UUID {
		t.Errorf("both events have the id %q", first.UUID)
	}
	if e.Source != "/web" || e.CorrelationID != e.ID || e.CausationID != "" || e.SchemaVersion != 1 {
		t.Errorf("got %+v, want a chain that begins here", e)
	}
	if e.Time.Before(before.Add(-time.Second)) || e.Time.After(time.Now()) {
		t.Errorf("time: got %v, want now", e.Time)
	}
	if got := second.Metadata["ce_correlationid"]; got != "request-1" {
		t.Errorf("correlation: got %q, want that of the context", got)
	}
	if got := mustNew(t, ctx, "a", nil, event.WithSource("/other")).Metadata["ce_source"]; got != "/other" {
		t.Errorf("source: got %q, want that of the option", got)
	}
	_, err = event.New(t.Context(), "a", nil)
	wantError(t, "no source", err, "ce_source", "outside a handler use WithSource or ContextWithSource")
}

// handling is the context of a handler that is running for msg.
func handling(msg *message.Message) *flight.Flight {
	return &flight.Flight{
		Context: context.Background(), Original: msg, Delivery: &brokers.Delivery{}, Topic: "orders",
		Consumer: "billing.orders", ID: "ce:/shop 42", Source: "/billing", CorrelationID: "cor", CausationID: "cau",
	}
}

func TestNewInsideAHandler(t *testing.T) {
	f := handling(binary("x"))
	f.StartAttempt()
	ctx, cancel := context.WithCancel(event.ContextWithCorrelation(event.ContextWithSource(f, "/not"), "not"))
	defer cancel()
	e, err := event.Parse(mustNew(t, ctx, "invoice.created", nil))
	if err != nil {
		t.Fatal(err)
	}
	// The id is frozen: versions that run side by side must give the same one.
	want := event.Envelope{
		ID: "dbc7e453-67ca-8607-a2e7-df1dca9af0ad", Source: "/billing", Type: "invoice.created",
		CorrelationID: "cor", CausationID: "cau", SchemaVersion: 1, Time: e.Time,
	}
	if !reflect.DeepEqual(e, want) {
		t.Errorf("got  %+v\nwant %+v", e, want)
	}
	if id, err := uuid.Parse(e.ID); err != nil || id.Version() != 8 || id.Variant() != uuid.RFC4122 {
		t.Errorf("id: got %q, want a UUID of version 8", e.ID)
	}
}

// The first attempt published two events and then failed. Its retry published them again under new ids, and
// the consumers of them took both for new ones.
func TestNewGivesARetryTheSameIDs(t *testing.T) {
	f := handling(binary("x"))
	attempt := func() (ids []string) {
		f.StartAttempt()
		for _, typ := range []string{"a", "a", "b"} {
			ids = append(ids, mustNew(t, f, typ, nil).UUID)
		}
		return append(ids, mustNew(t, f, "a", nil, event.WithID("own")).UUID, mustNew(t, f, "a", nil).UUID)
	}
	first, second := attempt(), attempt()
	if !reflect.DeepEqual(first, second) {
		t.Errorf("got  %v\nthen %v", first, second)
	}
	seen := make(map[string]bool)
	for _, id := range first {
		seen[id] = true
	}
	if len(seen) != len(first) {
		t.Errorf("two events of one attempt share an id: %v", first)
	}
	other := handling(binary("x"))
	other.Consumer = "billing.audit"
	other.StartAttempt()
	if id := mustNew(t, other, "a", nil).UUID; id == first[0] {
		t.Errorf("two consumers of one message gave the id %q", id)
	}
	other = handling(binary("x"))
	other.ID = "ce:/shop 43"
	other.StartAttempt()
	if id := mustNew(t, other, "a", nil).UUID; id == first[0] {
		t.Errorf("two messages gave the id %q", id)
	}
}

// A handler whose events depend on what it finds made another event first on the retry. With the ordinal
// alone it would have had the id of the first attempt's event, and would have been skipped as its duplicate.
func TestNewGivesAnotherTypeAnotherID(t *testing.T) {
	f := handling(binary("x"))
	f.StartAttempt()
	first := mustNew(t, f, "order.paid", nil).UUID
	f.StartAttempt()
	if second := mustNew(t, f, "order.refused", nil).UUID; second == first {
		t.Errorf("both have the id %q", first)
	}
}

// On a plain router there may be no name and no id. Ids derived from nothing would all be the same.
func TestNewWithoutConsumerOrIDIsRandom(t *testing.T) {
	for name, change := range map[string]func(*flight.Flight){
		"no consumer": func(f *flight.Flight) { f.Consumer = "" },
		"no id":       func(f *flight.Flight) { f.ID = "" },
	} {
		var ids [2]string
		for i := range ids {
			f := handling(binary("x"))
			change(f)
			f.StartAttempt()
			ids[i] = mustNew(t, f, "a", nil).UUID
		}
		if ids[0] == ids[1] {
			t.Errorf("%s: both have the id %q", name, ids[0])
		}
	}
}

func TestNewNamesTheCause(t *testing.T) {
	long := strings.Repeat("a", 300)
	for name, tt := range map[string]struct {
		msg  *message.Message
		want string // sha256: is a hash
	}{
		"CloudEvents id":  {withUUID(binary("x"), "u"), "42"},
		"structured":      {structured(`{"source":"/s","id":"7"}`), "7"},
		"UUID":            {withUUID(received("x"), "u"), "u"},
		"structured UUID": {withUUID(structured(`{`), "u"), "u"},
		"neither":         {received("x"), "ce:/shop 42"},
		"no message":      {nil, "ce:/shop 42"},
		"too long":        {binary("x", "ce_id", long), "sha256:"},
		"not allowed":     {binary("x", "ce_id", "a\x00b"), "sha256:"},
	} {
		f := handling(tt.msg)
		f.CorrelationID, f.CausationID = "", ""
		msg := mustNew(t, f, "a", nil)
		got := msg.Metadata["ce_causationid"]
		if tt.want != got && (tt.want != "sha256:" || !strings.HasPrefix(got, tt.want) || len(got) != 71) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
		if c := msg.Metadata["ce_correlationid"]; c != got {
			t.Errorf("%s: correlation: got %q, want the cause, %q: it began the chain", name, c, got)
		}
	}
	f := handling(binary("x"))
	if got := mustNew(t, f, "a", nil).Metadata["ce_causationid"]; got != "cau" {
		t.Errorf("got %q, want what middleware.Correlation found", got)
	}
	if got := mustNew(t, f, "a", nil, event.WithCausation("mine")).Metadata["ce_causationid"]; got != "mine" {
		t.Errorf("got %q, want that of the option", got)
	}
}

// A huge correlation id came in, and every event that it led to carried it on, until no broker took them.
func TestNewBoundsAnInheritedCorrelationID(t *testing.T) {
	f := handling(binary("x"))
	for _, id := range []string{strings.Repeat("a", 256), strings.Repeat("a", 1<<20), "a\nb", "\xff"} {
		f.CorrelationID = id
		got := mustNew(t, f, "a", nil).Metadata["ce_correlationid"]
		if !strings.HasPrefix(got, "sha256:") || len(got) != 71 {
			t.Errorf("%.20q: got %.80q, want its hash", id, got)
		}
		if again := mustNew(t, f, "a", nil).Metadata["ce_correlationid"]; again != got {
			t.Errorf("%.20q: got %q, then %q", id, got, again)
		}
	}
}

func TestNewPayloads(t *testing.T) {
	var nilOrder *order
	for name, tt := range map[string]struct {
		data any
		opts []event.Option
		want []byte
		ct   string
	}{
		"a value":           {data: order{"a", 1}, want: []byte(`{"id":"a","amount":1}`), ct: "application/json"},
		"a nil pointer":     {data: nilOrder, want: []byte(`null`), ct: "application/json"},
		"bytes":             {data: []byte("\x00"), want: []byte("\x00"), ct: "application/octet-stream"},
		"bytes with a type": {data: []byte("x"), opts: []event.Option{event.WithContentType("text/plain")}, want: []byte("x"), ct: "text/plain"},
		"bytes of a codec":  {data: []byte("x"), opts: []event.Option{event.WithCodec(upper{})}, want: []byte("x"), ct: "text/x-upper"},
		"raw JSON":          {data: json.RawMessage(`{"a": 1.0}`), want: []byte(`{"a": 1.0}`), ct: "application/json"},
		"a codec":           {data: order{ID: "a"}, opts: []event.Option{event.WithCodec(upper{})}, want: []byte("A"), ct: "text/x-upper"},
		"a codec's nil":     {data: order{}, opts: []event.Option{event.WithCodec(silent{})}, want: []byte{}, ct: "text/x-upper"},
		"a tombstone":       {data: nil, opts: []event.Option{event.WithContentType("text/plain")}},
	} {
		msg := mustNew(t, t.Context(), "a", tt.data, append(tt.opts, event.WithSource("/s"))...)
		if got := []byte(msg.Payload); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got payload %#v, want %#v", name, got, tt.want)
		}
		if ct, ok := msg.Metadata["content-type"]; ct != tt.ct || ok != (tt.ct != "") {
			t.Errorf("%s: got content type %q, want %q", name, ct, tt.ct)
		}
	}
}

// silent gives nil for an empty value, as a codec may.
type silent struct{ upper }

func (silent) Marshal(any) ([]byte, error) { return nil, nil }

func TestNewRefusesWhatAnEventMayNotHave(t *testing.T) {
	for name, tt := range map[string]struct {
		typ         string
		data        any
		opt         event.Option
		field, text string
	}{
		"no type":                 {"", nil, nil, "ce_type", "empty"},
		"a type with a control":   {"a\x00", nil, nil, "ce_type", "control"},
		"an empty id":             {"a", nil, event.WithID(""), "ce_id", "empty"},
		"an id that is no UTF-8":  {"a", nil, event.WithID("\xff"), "ce_id", "UTF-8"},
		"an empty source":         {"a", nil, event.WithSource(""), "ce_source", "empty"},
		"a source with a space":   {"a", nil, event.WithSource("my service"), "ce_source", `"my service": not a URI reference`},
		"a source that is no URI": {"a", nil, event.WithSource("%zz"), "ce_source", "not a URI reference"},
		"a relative schema":       {"a", nil, event.WithDataSchema("/s"), "ce_dataschema", `"/s": not an absolute URI`},
		"schema version 0":        {"a", nil, event.WithSchemaVersion(0), "ce_schemaversion", `"0": not a whole number`},
		"a huge schema version":   {"a", nil, event.WithSchemaVersion(math.MaxInt32 + 1), "ce_schemaversion", "not a whole number"},
		"a year beyond 9999":      {"a", nil, event.WithTime(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)), "ce_time", "RFC 3339"},
		"a huge subject":          {"a", nil, event.WithSubject(strings.Repeat("s", event.MaxAttributeBytes+1)), "ce_subject", "at most 65536"},
		"an extension's name":     {"a", nil, event.WithExtension("my_ext", "v"), "ce_my_ext", "attribute name"},
		"an extension data":       {"a", nil, event.WithExtension("data", "v"), "ce_data", "reserved"},
		"an extension id":         {"a", nil, event.WithExtension("id", "v"), "ce_id", "option of its own"},
		"an empty extension":      {"a", nil, event.WithExtension("x", ""), "ce_x", "empty"},
		"an extension's value":    {"a", nil, event.WithExtension("x", "a\x7f"), "ce_x", "control"},
		"no codec":                {"a", nil, event.WithCodec(nil), "data", "WithCodec: nil"},
		"a channel":               {"a", make(chan int), nil, "data", "encode chan int as application/json: json: unsupported type"},
		"no JSON":                 {"a", json.RawMessage("{"), nil, "data", "json.RawMessage that is not JSON"},
		"the structured type":     {"a", []byte("{}"), event.WithContentType("Application/CloudEvents+json"), "content-type", "binary mode"},
	} {
		t.Run(name, func(t *testing.T) {
			opts := []event.Option{event.WithSource("/s")}
			if tt.opt != nil {
				opts = append(opts, tt.opt)
			}
			msg, err := event.New(t.Context(), tt.typ, tt.data, opts...)
			wantError(t, name, err, tt.field, tt.text)
			if msg != nil {
				t.Errorf("got %v with the error", msg)
			}
		})
	}
}

// Options are values that can be kept and used again, by several goroutines too.
func TestNewDoesNotShareExtensions(t *testing.T) {
	opts := []event.Option{event.WithSource("/s"), event.WithExtension("tenant", "blue"), event.WithID("1"), event.WithTime(time.Unix(1, 0))}
	first := mustNew(t, t.Context(), "a", nil, opts...)
	kept := maps.Clone(first.Metadata)
	second := mustNew(t, t.Context(), "a", nil, append(opts, event.WithExtension("tenant", "red"))...)
	if !maps.Equal(first.Metadata, kept) || second.Metadata["ce_tenant"] != "red" {
		t.Errorf("got %v and %v", first.Metadata, second.Metadata)
	}
}

func TestContextAccessors(t *testing.T) {
	ctx := context.Background()
	if got := event.CorrelationID(ctx) + event.CausationID(ctx) + event.MessageID(ctx); got != "" {
		t.Errorf("outside: got %q, want nothing", got)
	}
	if _, ok := event.FromContext(ctx); ok {
		t.Error("outside: got an envelope")
	}
	if got := event.CorrelationID(event.ContextWithCorrelation(ctx, "c")); got != "c" {
		t.Errorf("got %q, want c", got)
	}
	f := handling(binary("x"))
	ctx = event.ContextWithCorrelation(f, "outer")
	if a, b, c := event.CorrelationID(ctx), event.CausationID(ctx), event.MessageID(ctx); a != "cor" || b != "cau" || c != "ce:/shop 42" {
		t.Errorf("got %q, %q, %q", a, b, c)
	}
	f.CorrelationID, f.CausationID = "", ""
	if got := event.CausationID(ctx); got != "42" {
		t.Errorf("got %q, want the message's own id", got)
	}
	if got := event.CorrelationID(ctx); got != "outer" {
		t.Errorf("got %q, want outer", got)
	}
}

func TestFromContext(t *testing.T) {
	f := handling(binary("x", "ce_id", "original"))
	if e, ok := event.FromContext(f); !ok || e.ID != "original" {
		t.Errorf("a plain router: got %q, %v", e.ID, ok)
	}
	f.View.Metadata = binary("x", "ce_id", "view").Metadata
	if e, ok := event.FromContext(f); !ok || e.ID != "view" {
		t.Errorf("a view: got %q, %v", e.ID, ok)
	}
	ctx, cancel := context.WithCancel(event.NewContext(f, &event.Envelope{ID: "given"}))
	defer cancel()
	if e, ok := event.FromContext(ctx); !ok || e.ID != "given" {
		t.Errorf("NewContext: got %q, %v", e.ID, ok)
	}
	if got := flight.From(ctx); got != f {
		t.Errorf("the flight is lost behind the envelope")
	}
	f.View.Metadata["ce_time"] = "never"
	if e, ok := event.FromContext(f); ok {
		t.Errorf("an invalid envelope: got %+v", e)
	}
}
