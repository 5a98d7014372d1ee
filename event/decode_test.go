package event_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
)

type order struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"`
}

func decoder(t *testing.T, cfg event.DecoderConfig) *event.Decoder {
	t.Helper()
	d, err := event.NewDecoder(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDecodeChoosesTheCodecByContentType(t *testing.T) {
	d := decoder(t, event.DecoderConfig{Codecs: []event.Codec{upper{}}})
	for ct, want := range map[string]string{
		"":                                "a",
		"application/json":                "a",
		"Application/JSON; charset=UTF-8": "a",
		"text/json":                       "a",
		"application/vnd.shop.v1+json":    "a",
		" ; x=y":                          "a",
		"text/x-upper":                    `{"ID":"A"}`,
		"TEXT/X-UPPER;a=b":                `{"ID":"A"}`,
	} {
		got, e, err := event.Decode[order](d, binary(`{"id":"a"}`, "content-type", ct))
		if err != nil || got.ID != want || e.ID != "42" {
			t.Errorf("%q: got %+v, %v, want id %q", ct, got, err, want)
		}
	}
	for _, ct := range []string{"text/plain", "application/protobuf", "nonsense", "application/jsonx"} {
		msg := binary(`{"id":"a"}`, "content-type", ct)
		_, e, err := event.Decode[order](d, msg)
		wantError(t, ct, err, "content-type", "no codec")
		if string(e.Data) != `{"id":"a"}` {
			t.Errorf("%q: got data %q", ct, e.Data)
		}
	}
}

// upper is a codec of a user's own, that puts the data itself into an order.
type upper struct{}

func (upper) ContentType() string           { return "text/x-upper" }
func (upper) Marshal(v any) ([]byte, error) { return []byte(strings.ToUpper(v.(order).ID)), nil }
func (upper) Unmarshal(data []byte, v any) error {
	v.(*order).ID = strings.ToUpper(string(data))
	return nil
}

func TestDecodeToleratesUnknownFields(t *testing.T) {
	got, _, err := event.Decode[order](nil, binary(`{"id":"a","amount":9007199254740993,"added":{"later":[1]}}`))
	if want := (order{"a", 9007199254740993}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestDecodeIntoOtherTypes(t *testing.T) {
	const data = `{"id":"a","amount":5}`
	if got, _, err := event.Decode[*order](nil, binary(data)); err != nil || got == nil || got.ID != "a" {
		t.Errorf("pointer: got %+v, %v", got, err)
	}
	if got, _, err := event.Decode[map[string]any](nil, binary(data)); err != nil || got["id"] != "a" {
		t.Errorf("map: got %v, %v", got, err)
	}
	if got, _, err := event.Decode[any](nil, binary(data)); err != nil || got == nil {
		t.Errorf("any: got %v, %v", got, err)
	}
	if got, _, err := event.Decode[[]int](nil, binary(`[1,2]`)); err != nil || !reflect.DeepEqual(got, []int{1, 2}) {
		t.Errorf("slice: got %v, %v", got, err)
	}
	if got, _, err := event.Decode[string](nil, binary(`"a"`)); err != nil || got != "a" {
		t.Errorf("string: got %v, %v", got, err)
	}
}

// The handler's context answers for the message that it handles, and there is none for one that cannot be decoded.
func TestDecodeContextHasTheEnvelope(t *testing.T) {
	msg := binary(`{"id":"a","amount":5}`)
	msg.SetContext(context.WithValue(t.Context(), ctxKey{}, "of the message"))
	want, err := event.Parse(msg)
	if err != nil {
		t.Fatal(err)
	}
	v, ctx, err := event.DecodeContext[order](nil, msg)
	if err != nil || v != (order{"a", 5}) {
		t.Fatalf("got %+v, %v", v, err)
	}
	if got, ok := event.FromContext(ctx); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("the context has the envelope %+v, %v, want %+v", got, ok, want)
	}
	if got := ctx.Value(ctxKey{}); got != "of the message" {
		t.Errorf("the context has %v of the message's own", got)
	}
	if _, ctx, err = event.DecodeContext[order](nil, binary(`{`)); err == nil || ctx != nil {
		t.Errorf("of a broken message: context %v, error %v", ctx, err)
	}
}

type ctxKey struct{}

// A handler that works in place on the bytes it gets must not change what a retry or the dead letter sees.
func TestI9RawBytesAreACopy(t *testing.T) {
	for _, ct := range []string{"", "application/avro"} {
		msg := binary(`{"id":"a"}`, "content-type", ct)
		raw, _, err := event.Decode[[]byte](nil, msg)
		if err != nil || string(raw) != `{"id":"a"}` {
			t.Fatalf("[]byte of %q: got %q, %v", ct, raw, err)
		}
		clear(raw)
		lazy, _, err := event.Decode[json.RawMessage](nil, msg)
		if err != nil || string(lazy) != `{"id":"a"}` {
			t.Fatalf("json.RawMessage of %q: got %q, %v", ct, lazy, err)
		}
		clear(lazy)
		if string(msg.Payload) != `{"id":"a"}` {
			t.Errorf("the payload became %q", msg.Payload)
		}
	}
}

// A compacted topic marks a deletion by a nil payload; it was decoded into an order full of zeroes, which the
// handler then stored.
func TestDecodeOfATombstone(t *testing.T) {
	const head = `{"specversion":"1.0","id":"1","source":"/s","type":"t"`
	tombstone := binary("")
	tombstone.Payload = nil
	for name, msg := range map[string]*message.Message{
		"nil":                   tombstone,
		"empty":                 binary(""),
		"spaces":                binary(" \n"),
		"null":                  binary(" null "),
		"null after a BOM":      binary("\xef\xbb\xbfnull"),
		"structured, no data":   structured(head + `}`),
		"structured, null data": structured(head + `,"data":null}`),
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := event.Decode[order](nil, msg)
			wantError(t, name, err, "data", "decode into event_test.order, which cannot be nil: no data")
			if !errors.Is(err, event.ErrNoData) {
				t.Errorf("got %v, want it to be ErrNoData", err)
			}
			if _, _, err := event.Decode[int](nil, msg); !errors.Is(err, event.ErrNoData) {
				t.Errorf("int: got %v, want ErrNoData", err)
			}
			if got, _, err := event.Decode[*order](nil, msg); got != nil || err != nil {
				t.Errorf("pointer: got %v, %v, want nil", got, err)
			}
			if got, _, err := event.Decode[map[string]any](nil, msg); got != nil || err != nil {
				t.Errorf("map: got %v, %v, want nil", got, err)
			}
			if got, _, err := event.Decode[any](nil, msg); got != nil || err != nil {
				t.Errorf("any: got %v, %v, want nil", got, err)
			}
		})
	}
	for _, codec := range []event.Codec{upper{}, event.JSON} { // upper would make an order of it
		if _, _, err := event.Decode[order](decoder(t, event.DecoderConfig{Default: codec}), tombstone); !errors.Is(err, event.ErrNoData) {
			t.Errorf("%T: got %v, want ErrNoData: nil never reaches the codec", codec, err)
		}
	}
	if got, e, err := event.Decode[[]byte](nil, tombstone); got != nil || e.Data != nil || err != nil {
		t.Errorf("raw: got %#v of %#v, %v, want nil", got, e.Data, err)
	}
	if got, _, err := event.Decode[[]byte](nil, binary("")); got == nil || err != nil {
		t.Errorf("raw: got %#v, %v, want empty and not nil", got, err)
	}
}

func TestDecodeErrorsArePermanentAndKeepTheBytes(t *testing.T) {
	for payload, text := range map[string]string{
		`{"id":`:                   `"6 bytes of application/json": decode into event_test.order: unexpected end`,
		`{"id":5}`:                 "cannot unmarshal number",
		`{"id":"a"} x`:             "after top-level",
		`[]`:                       "cannot unmarshal array",
		"{\"id\":\"Jos\xe9\"}":     "not UTF-8", // encoding/json would have stored Jos\ufffd
		"\x00\x01":                 "invalid character",
		`{"amount":1.5}`:           "cannot unmarshal number 1.5",
		strings.Repeat("[", 20000): "depth",
	} {
		msg := binary(payload, "content-type", "application/json")
		got, e, err := event.Decode[order](nil, msg)
		wantError(t, payload[:min(40, len(payload))], err, "data", text)
		if got != (order{}) || string(e.Data) != payload || string(msg.Payload) != payload {
			t.Errorf("%q\n got %+v and data %q, want nothing and the bytes", payload, got, e.Data)
		}
	}
	_, _, err := event.Decode[order](nil, binary(`{"id":5}`))
	var typeError *json.UnmarshalTypeError
	if !errors.As(err, &typeError) {
		t.Errorf("got %v, want it to wrap the codec's error", err)
	}
}

func TestDecodeOfAnInvalidEnvelope(t *testing.T) {
	v, e, err := event.Decode[order](nil, binary(`{"id":"a"}`, "ce_time", "never"))
	wantError(t, "ce_time never", err, "ce_time", "RFC 3339")
	if v != (order{}) || string(e.Data) != `{"id":"a"}` || e.ID != "42" {
		t.Errorf("got %+v and %+v, want the rest of the envelope", v, e)
	}
}

func TestNewDecoderNamesAllMistakes(t *testing.T) {
	var u event.Upcasters
	fn := func(b []byte) ([]byte, error) { return b, nil }
	u.Add("", 1, fn)
	u.Add("a", 0, fn)
	u.Add("b", 1, nil)
	u.Add("c", 1, fn)
	u.Add("c", 1, fn)
	u.Add("d", 2, fn)
	u.Add("d", 4, fn)
	_, err := event.NewDecoder(event.DecoderConfig{Codecs: []event.Codec{nil, upper{}, upper{}, nameless{}}, Upcasters: &u})
	if err == nil {
		t.Fatal("got no error")
	}
	for _, want := range []string{
		"Codecs[0]: nil", `Codecs[2] (event_test.upper): event_test.upper has the media type "text/x-upper" already`,
		`Codecs[3] (event_test.nameless): "" is not a media type`,
		"upcaster: the event type is empty", `upcaster of "a": version 0 is below 1`,
		`upcaster of "b" from version 1: the function is nil`, `upcaster of "c" from version 1: registered twice`,
		`upcasters of "d": a gap: none from version 3`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant it to say %q", err, want)
		}
	}
}

type nameless struct{ upper }

func (nameless) ContentType() string { return "" }

func TestNewDecoderLetsAUserReplaceJSONAndTheDefault(t *testing.T) {
	d := decoder(t, event.DecoderConfig{Codecs: []event.Codec{replaced{}}, Default: upper{}})
	if got, _, err := event.Decode[order](d, binary("x", "content-type", "application/a+json")); err != nil || got.ID != "X" {
		t.Errorf("JSON: got %+v, %v", got, err)
	}
	if got, _, err := event.Decode[order](d, binary("x")); err != nil || got.ID != "X" {
		t.Errorf("default: got %+v, %v", got, err)
	}
	if got, _, err := event.Decode[order](d, binary(`{"id":"a"}`, "content-type", "text/json")); err != nil || got.ID != "a" {
		t.Errorf("text/json: got %+v, %v", got, err)
	}
}

type replaced struct{ upper }

func (replaced) ContentType() string { return "application/json" }

func TestUpcastersRunFromTheMessagesVersionToTheNewest(t *testing.T) {
	var u event.Upcasters
	step := func(mark string) event.Upcaster {
		return func(b []byte) ([]byte, error) {
			for i := range b { // in place, which is allowed
				if b[i] == 'x' {
					b[i] = 'y'
				}
			}
			return fmt.Appendf(b, " %s", mark), nil
		}
	}
	u.Add("order.placed", 3, step("3to4"))
	u.Add("order.placed", 2, step("2to3"))
	u.Add("other", 1, step("other"))
	d := decoder(t, event.DecoderConfig{Upcasters: &u})
	u.Add("order.placed", 4, step("too late: the decoder has a copy"))

	for version, want := range map[string]string{
		"2": "y 2to3 3to4",
		"3": "y 3to4",
		"4": "x",
		"9": "x", // from the future: what was added is tolerated
	} {
		msg := binary("x", "ce_schemaversion", version)
		got, e, err := event.Decode[[]byte](d, msg)
		if err != nil || string(got) != want {
			t.Errorf("version %s: got %q, %v, want %q", version, got, err, want)
		}
		if string(msg.Payload) != "x" || string(e.Data) != "x" || fmt.Sprint(e.SchemaVersion) != version {
			t.Errorf("version %s: the message became %q, the envelope %+v", version, msg.Payload, e)
		}
	}
	_, _, err := event.Decode[[]byte](d, binary("x"))
	wantError(t, "no version, which is 1", err, "ce_schemaversion", `"1 of order.placed": no upcaster from this version: the oldest is from 2`)

	if got, _, err := event.Decode[[]byte](d, binary("x", "ce_type", "unknown.type")); err != nil || string(got) != "x" {
		t.Errorf("a type without upcasters: got %q, %v", got, err)
	}
	if got, _, err := event.Decode[[]byte](d, received("x")); err != nil || string(got) != "x" {
		t.Errorf("a plain message: got %q, %v", got, err)
	}
	nothing := binary("")
	nothing.Payload = nil
	if got, _, err := event.Decode[*order](d, nothing); err != nil || got != nil {
		t.Errorf("a tombstone: got %+v, %v", got, err)
	}
}

func TestUpcasterErrorsArePermanent(t *testing.T) {
	var u event.Upcasters
	u.Add("order.placed", 1, func(b []byte) ([]byte, error) { return b, nil })
	u.Add("order.placed", 2, func([]byte) ([]byte, error) { return nil, classify.Transient(io.ErrUnexpectedEOF) })
	_, _, err := event.Decode[order](decoder(t, event.DecoderConfig{Upcasters: &u}), binary("{}"))
	wantError(t, "failing upcaster", err, "ce_schemaversion", `"1 of order.placed": upcast from version 2: unexpected EOF`)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, want it to wrap the upcaster's error", err)
	}
}

func TestUpcasterWithoutResultIsNoData(t *testing.T) {
	var u event.Upcasters
	u.Add("order.placed", 1, func([]byte) ([]byte, error) { return nil, nil })
	d := decoder(t, event.DecoderConfig{Upcasters: &u})
	if _, _, err := event.Decode[order](d, binary("{}")); !errors.Is(err, event.ErrNoData) {
		t.Errorf("got %v, want ErrNoData", err)
	}
}

// Real deliveries of GitHub, binary and structured: the data is the same, byte for byte.
func TestDecodeRealWebhooks(t *testing.T) {
	type webhook struct {
		Action string `json:"action"`
		Sender *struct {
			Login string `json:"login"`
			ID    int64  `json:"id"`
		} `json:"sender"`
	}
	count := 0
	for _, line := range webhooks(t) {
		msg := binary(string(line.Payload), "ce_type", "github."+line.Event, "content-type", "application/json")
		got, e, err := event.Decode[webhook](nil, msg)
		if err != nil || got.Action == "" || string(e.Data) != string(line.Payload) {
			t.Errorf("%s: got %+v, %v", line.Event, got, err)
		}
		again, e, err := event.Decode[webhook](nil, structured(`{"specversion":"1.0","id":"1","source":"/github","type":"t","data":`+string(line.Payload)+`}`))
		if err != nil || !reflect.DeepEqual(again, got) || string(e.Data) != string(line.Payload) {
			t.Errorf("%s, structured: got %+v, %v, want %+v", line.Event, again, err, got)
		}
		count++
	}
	if count != 5 {
		t.Errorf("got %d deliveries, want 5", count)
	}
}

type webhookLine struct {
	Event   string          `json:"event"`
	Payload json.RawMessage `json:"payload"`
}

func webhooks(tb testing.TB) []webhookLine {
	tb.Helper()
	b, err := os.ReadFile("testdata/github-webhooks.jsonl")
	if err != nil {
		tb.Fatal(err)
	}
	var lines []webhookLine
	for text := range strings.Lines(string(b)) {
		var line webhookLine
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			tb.Fatal(err)
		}
		lines = append(lines, line)
	}
	return lines
}

func TestADecoderIsSafeForConcurrentUse(t *testing.T) {
	var u event.Upcasters
	u.Add("order.placed", 1, func(b []byte) ([]byte, error) { clear(b); return append(b[:0], `{"id":"b"}`...), nil })
	d := decoder(t, event.DecoderConfig{Upcasters: &u})
	msg := binary(`{"id":"a"}`)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got, _, err := event.Decode[order](d, msg); err != nil || got.ID != "b" {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	wg.Wait()
}

// payment has a Validate of its value, refund one of its pointer.
type (
	payment struct {
		Cents int `json:"cents"`
	}
	refund struct {
		Cents int `json:"cents"`
	}
)

var errCents = errors.New("cents is 0")

func (p payment) Validate() error {
	if p.Cents == 0 {
		return errCents
	}
	return nil
}

func (r *refund) Validate() error { return payment(*r).Validate() }

func TestDecodeAsksWhetherTheValueIsValid(t *testing.T) {
	decode := map[string]func(*message.Message) error{
		"value":             func(m *message.Message) error { _, _, err := event.Decode[payment](nil, m); return err },
		"pointer to value":  func(m *message.Message) error { _, _, err := event.Decode[*payment](nil, m); return err },
		"pointer's method":  func(m *message.Message) error { _, _, err := event.Decode[refund](nil, m); return err },
		"pointer to itself": func(m *message.Message) error { _, _, err := event.Decode[*refund](nil, m); return err },
	}
	for name, f := range decode {
		t.Run(name, func(t *testing.T) {
			good, bad := message.NewMessage("1", []byte(`{"cents":5}`)), message.NewMessage("2", []byte(`{"cents":0}`))
			if err := f(good); err != nil {
				t.Errorf("valid value: %v", err)
			}
			err := f(bad)
			var invalid *event.Error
			if !errors.As(err, &invalid) || invalid.Field != "data" || !errors.Is(err, errCents) {
				t.Errorf("invalid value: %v, want an event.Error of data that wraps %v", err, errCents)
			}
			if got := (*classify.Classifier)(nil).Classify(err).Verdict; got != classify.VerdictPoison {
				t.Errorf("verdict is %v, want poison", got)
			}
		})
	}
	var none *payment
	none, _, err := event.Decode[*payment](nil, message.NewMessage("3", nil))
	if none != nil || err != nil {
		t.Errorf("a tombstone into a pointer: %v, %v; want nil, nil", none, err)
	}
}
