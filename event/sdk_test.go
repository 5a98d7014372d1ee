package event_test

import (
	"bytes"
	"context"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/format"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	ce "github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/headrace-go/headrace/event"
)

// The SDK of CloudEvents is the other side here. Its Kafka binding is a module of its own, so these two types
// do what that does: they let the SDK's own code read and write our messages.

// sdkReader lets the SDK read a message.
type sdkReader struct{ msg *message.Message }

var versions = spec.WithPrefix("ce_")

func (r sdkReader) ReadEncoding() binding.Encoding {
	if format.IsFormat(r.msg.Metadata["content-type"]) {
		return binding.EncodingStructured
	}
	if versions.Version(r.msg.Metadata[versions.PrefixedSpecVersionName()]) != nil {
		return binding.EncodingBinary
	}
	return binding.EncodingUnknown
}

func (r sdkReader) ReadStructured(ctx context.Context, w binding.StructuredWriter) error {
	if r.ReadEncoding() != binding.EncodingStructured {
		return binding.ErrNotStructured
	}
	return w.SetStructuredEvent(ctx, format.Lookup(r.msg.Metadata["content-type"]), bytes.NewReader(r.msg.Payload))
}

func (r sdkReader) ReadBinary(_ context.Context, w binding.BinaryWriter) error {
	version := versions.Version(r.msg.Metadata[versions.PrefixedSpecVersionName()])
	for key, value := range r.msg.Metadata {
		var err error
		switch {
		case key == "content-type":
			err = w.SetAttribute(version.AttributeFromKind(spec.DataContentType), value)
		case version.Attribute(key) != nil:
			err = w.SetAttribute(version.Attribute(key), value)
		case strings.HasPrefix(key, versions.Prefix()):
			err = w.SetExtension(strings.TrimPrefix(key, versions.Prefix()), value)
		}
		if err != nil {
			return err
		}
	}
	if len(r.msg.Payload) == 0 {
		return nil
	}
	return w.SetData(bytes.NewReader(r.msg.Payload))
}

func (sdkReader) GetAttribute(spec.Kind) (spec.Attribute, any) { return nil, nil }
func (sdkReader) GetExtension(string) any                      { return nil }

// sdkWriter lets the SDK write a message.
type sdkWriter struct{ msg *message.Message }

func (w sdkWriter) SetStructuredEvent(_ context.Context, f format.Format, r io.Reader) (err error) {
	w.msg.Metadata["content-type"] = f.MediaType()
	w.msg.Payload, err = io.ReadAll(r)
	return err
}

func (w sdkWriter) Start(context.Context) error { return nil }
func (w sdkWriter) End(context.Context) error   { return nil }

func (w sdkWriter) SetData(r io.Reader) (err error) {
	w.msg.Payload, err = io.ReadAll(r)
	return err
}

func (w sdkWriter) SetAttribute(a spec.Attribute, value any) error {
	s, err := types.Format(value)
	if a.Kind() == spec.DataContentType {
		w.msg.Metadata["content-type"] = s
	} else {
		w.msg.Metadata["ce_"+a.Name()] = s
	}
	return err
}

func (w sdkWriter) SetExtension(name string, value any) error {
	s, err := types.Format(value)
	w.msg.Metadata["ce_"+name] = s
	return err
}

// fromSDK writes e with the SDK in the given mode.
func fromSDK(t *testing.T, e ce.Event, mode binding.Encoding) *message.Message {
	t.Helper()
	if err := e.Validate(); err != nil {
		t.Fatalf("the SDK finds %v in the test's own event", err)
	}
	msg := message.NewMessage("", nil)
	ctx := binding.WithForceBinary(t.Context())
	if mode == binding.EncodingStructured {
		ctx = binding.WithForceStructured(t.Context())
	}
	got, err := binding.Write(ctx, binding.ToMessage(&e), sdkWriter{msg}, sdkWriter{msg})
	if err != nil || got != mode {
		t.Fatalf("the SDK wrote mode %v, %v, want %v", got, err, mode)
	}
	return msg
}

func TestSDKEventsAreRead(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 789, time.UTC)
	full := ce.New()
	full.SetID("1")
	full.SetSource("https://shop.test/a?b=c#d")
	full.SetType("order.placed")
	full.SetSubject("order/ü")
	full.SetTime(at)
	full.SetDataSchema("https://x.test/s")
	full.SetExtension("tenant", "blue")
	full.SetExtension("count", 42)
	full.SetExtension("flag", true)
	full.SetExtension("blob", []byte{0, 255})
	full.SetExtension("schemaversion", 3)
	full.SetExtension("partitionkey", "k")
	full.SetExtension("correlationid", "c")
	full.SetExtension("causationid", "d")
	want := event.Envelope{
		ID: "1", Source: "https://shop.test/a?b=c#d", Type: "order.placed", Subject: "order/ü", DataSchema: "https://x.test/s",
		Time: at, SchemaVersion: 3, PartitionKey: "k", CorrelationID: "c", CausationID: "d",
		Extensions: map[string]string{"tenant": "blue", "count": "42", "flag": "true", "blob": "AP8="},
	}
	for name, tt := range map[string]struct {
		set  func(*ce.Event) error
		ct   string
		data []byte
	}{
		"JSON":        {func(e *ce.Event) error { return e.SetData("application/json", map[string]any{"a": "<é>"}) }, "application/json", []byte(`{"a":"\u003cé\u003e"}`)},
		"JSON bytes":  {func(e *ce.Event) error { return e.SetData("application/json", []byte(`{"n":12345678901234567890.10}`)) }, "application/json", []byte(`{"n":12345678901234567890.10}`)},
		"text":        {func(e *ce.Event) error { return e.SetData("text/plain", "a\n\"é\"") }, "text/plain", []byte("a\n\"é\"")},
		"octets":      {func(e *ce.Event) error { return e.SetData("application/octet-stream", []byte{0, 1, 254, 255}) }, "application/octet-stream", []byte{0, 1, 254, 255}},
		"no data":     {func(*ce.Event) error { return nil }, "", nil},
		"real events": {func(e *ce.Event) error { return e.SetData("application/json", []byte(webhooks(t)[1].Payload)) }, "application/json", webhooks(t)[1].Payload},
	} {
		for _, mode := range []binding.Encoding{binding.EncodingBinary, binding.EncodingStructured} {
			t.Run(name+" "+mode.String(), func(t *testing.T) {
				e := full.Clone()
				if err := tt.set(&e); err != nil {
					t.Fatal(err)
				}
				want := want
				want.ContentType, want.Data = tt.ct, tt.data
				msg := fromSDK(t, e, mode)
				got, err := event.Parse(msg)
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("%v\n%s\n got %+v, %v\nwant %+v", msg.Metadata, msg.Payload, got, err, want)
				}
				if typ, err := event.TypeOf(msg); err != nil || typ != want.Type {
					t.Errorf("TypeOf: got %q, %v", typ, err)
				}
				if id, err := event.Identify(msg, "t"); err != nil || id != "ce:https://shop.test/a?b=c#d 1" {
					t.Errorf("Identify: got %q, %v", id, err)
				}
			})
		}
	}
}

func TestSDKReadsWhatNewWrites(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 789, time.UTC)
	msg := mustNew(t, t.Context(), "invoice.created", order{"a<é>", 5},
		event.WithSource("/billing?x=1"), event.WithSubject("invoice/ü"), event.WithKey("k"), event.WithTime(at),
		event.WithSchemaVersion(2), event.WithDataSchema("https://x.test/s"), event.WithExtension("tenant", "blue"),
		event.WithSequence("5"), event.WithCorrelation("c"), event.WithCausation("d"))
	e, err := binding.ToEvent(t.Context(), sdkReader{msg})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Validate(); err != nil {
		t.Errorf("the SDK finds %v", err)
	}
	if e.ID() != msg.UUID || e.Type() != "invoice.created" || e.Subject() != "invoice/ü" || !e.Time().Equal(at) ||
		e.DataSchema() != "https://x.test/s" || e.DataContentType() != "application/json" || e.SpecVersion() != "1.0" {
		t.Errorf("got %v", e)
	}
	want := map[string]any{"tenant": "blue", "schemaversion": "2", "partitionkey": "k", "sequence": "5", "correlationid": "c", "causationid": "d"}
	if got := e.Extensions(); !reflect.DeepEqual(got, want) {
		t.Errorf("extensions: got %v, want %v", got, want)
	}
	var o order
	if err := e.DataAs(&o); err != nil || o != (order{"a<é>", 5}) {
		t.Errorf("data: got %+v, %v", o, err)
	}

	// And on, in structured mode, to somebody else, and back to us.
	again := fromSDK(t, *e, binding.EncodingStructured)
	got, _, err := event.Decode[order](nil, again)
	if err != nil || got != o {
		t.Errorf("back in structured mode: got %+v, %v", got, err)
	}
	first, err := event.Identify(msg, "t")
	if id, err2 := event.Identify(again, "t"); err != nil || err2 != nil || id != first {
		t.Errorf("got id %q, %v, at first %q, %v", id, err2, first, err)
	}
}

// What the SDK calls invalid, we refuse too.
func TestSDKAgreesOnWhatIsInvalid(t *testing.T) {
	for _, msg := range []*message.Message{
		binary("x", "ce_id", "-"),
		binary("x", "ce_source", "-"),
		binary("x", "ce_type", "-"),
		binary("x", "ce_specversion", "2.0"),
		binary("x", "ce_time", "noon"),
		binary("x", "ce_my_ext", "a"),
		structured(`{"specversion":"1.0","source":"/s","type":"t"}`),
		structured(`{"specversion":"1.1","id":"1","source":"/s","type":"t"}`),
		structured(`{"id":"1","source":"/s","type":"t"}`),
		structured(`{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"noon"}`),
		structured(`{"specversion":"1.0","id":"1","source":"/s","type":"t","datacontenttype":"text/xml","data":{}}`),
		structured(`{"specversion":"1.0","id":"1","source":"/s","type":"t","x":{}}`),
		structured(`{`),
	} {
		e, err := binding.ToEvent(t.Context(), sdkReader{msg})
		if err == nil {
			err = e.Validate()
		}
		if err == nil {
			t.Errorf("%v %s: the SDK takes it", msg.Metadata, msg.Payload)
		}
		if _, err := event.Parse(msg); err == nil {
			t.Errorf("%v %s: we take it", msg.Metadata, msg.Payload)
		}
	}
}
