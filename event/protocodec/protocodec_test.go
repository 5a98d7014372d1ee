package protocodec_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/event/protocodec"
)

func decoder(tb testing.TB) *event.Decoder {
	tb.Helper()
	d, err := event.NewDecoder(event.DecoderConfig{Codecs: []event.Codec{protocodec.Codec}})
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func TestMessagesComeBackAsTheyWereMade(t *testing.T) {
	want, err := structpb.NewStruct(map[string]any{"a": 1.5, "b": []any{"x", nil}})
	if err != nil {
		t.Fatal(err)
	}
	msg, err := event.New(t.Context(), "order.placed", want, event.WithSource("/shop"), event.WithCodec(protocodec.Codec))
	if err != nil {
		t.Fatal(err)
	}
	if ct := msg.Metadata["content-type"]; ct != "application/protobuf" {
		t.Errorf("content type: got %q", ct)
	}
	for _, ct := range []string{"application/protobuf", "application/x-protobuf", "application/vnd.google.protobuf; messageType=x"} {
		msg.Metadata["content-type"] = ct
		got, _, err := event.Decode[*structpb.Struct](decoder(t), msg)
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: got %v, %v, want %v", ct, got, err, want)
		}
	}
}

// An empty message is a message, with all fields at their default. A tombstone is none.
func TestEmptyDataIsAMessageAndNilIsNone(t *testing.T) {
	msg, err := event.New(t.Context(), "order.placed", &wrapperspb.StringValue{}, event.WithSource("/shop"), event.WithCodec(protocodec.Codec))
	if err != nil {
		t.Fatal(err)
	}
	if msg.Payload == nil || len(msg.Payload) != 0 {
		t.Errorf("payload: got %#v, want it empty and not nil", msg.Payload)
	}
	if got, _, err := event.Decode[*wrapperspb.StringValue](decoder(t), msg); got == nil || err != nil {
		t.Errorf("empty: got %v, %v, want a message", got, err)
	}
	msg.Payload = nil
	if got, _, err := event.Decode[*wrapperspb.StringValue](decoder(t), msg); got != nil || err != nil {
		t.Errorf("nil: got %v, %v, want nil", got, err)
	}
}

// An older program hands on what a newer one has added.
func TestUnknownFieldsAreKept(t *testing.T) {
	newer := []byte{0x0a, 1, 'a', 0x7a, 1, 'b'} // fields 1 and 15
	var got *wrapperspb.StringValue
	if err := protocodec.Codec.Unmarshal(newer, &got); err != nil || got.GetValue() != "a" {
		t.Fatalf("got %v, %v", got, err)
	}
	if b, err := protocodec.Codec.Marshal(got); err != nil || string(b) != string(newer) {
		t.Errorf("got % x, %v, want % x", b, err, newer)
	}
}

func TestUnmarshalIntoAMessageItself(t *testing.T) {
	var got wrapperspb.StringValue
	if err := protocodec.Codec.Unmarshal([]byte{0x0a, 1, 'a'}, &got); err != nil || got.GetValue() != "a" {
		t.Errorf("got %v, %v", &got, err)
	}
}

func TestWhatIsNoProtobufIsRefused(t *testing.T) {
	raw := func(b []byte) error {
		msg, err := event.New(t.Context(), "a", b, event.WithSource("/s"), event.WithCodec(protocodec.Codec))
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = event.Decode[*structpb.Struct](decoder(t), msg)
		return err
	}
	wrongType := func() error {
		msg, err := event.New(t.Context(), "a", []byte{}, event.WithSource("/s"), event.WithCodec(protocodec.Codec))
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = event.Decode[struct{ A int }](decoder(t), msg)
		return err
	}
	encode := func(v any) error {
		_, err := event.New(t.Context(), "a", v, event.WithSource("/s"), event.WithCodec(protocodec.Codec))
		return err
	}
	for name, tt := range map[string]struct {
		err  error
		text string
	}{
		"bytes that are cut off":  {raw([]byte{0x0a, 9}), "2 bytes of application/protobuf"},
		"a type without a schema": {wrongType(), "struct { A int } is no proto.Message"},
		"a struct to encode":      {encode(struct{}{}), "struct {} is no proto.Message"},
		"a nil message to encode": {encode((*structpb.Struct)(nil)), "a nil *structpb.Struct"},
		"no pointer":              {protocodec.Codec.Unmarshal(nil, 5), "not a pointer"},
		"a pointer to a pointer":  {protocodec.Codec.Unmarshal(nil, new(*int)), "*int is no proto.Message"},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.text) {
			t.Errorf("%s: got %v, want %q", name, tt.err, tt.text)
		}
	}
	var e *event.Error
	if err := raw([]byte{0xff}); !errors.As(err, &e) || e.Field != "data" {
		t.Errorf("got %v, want an *event.Error of data", err)
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte{0x0a, 1, 'a'})
	f.Fuzz(func(t *testing.T, data []byte) {
		var m *structpb.Struct
		if err := protocodec.Codec.Unmarshal(data, &m); (err == nil) != (m != nil) {
			t.Fatalf("got %v with %v", m, err)
		}
	})
}

func ExampleCodec() {
	decoder, err := event.NewDecoder(event.DecoderConfig{Codecs: []event.Codec{protocodec.Codec}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := event.ContextWithSource(context.Background(), "/shop")
	msg, err := event.New(ctx, "order.placed", wrapperspb.String("a-1"), event.WithCodec(protocodec.Codec))
	if err != nil {
		fmt.Println(err)
		return
	}
	got, _, err := event.Decode[*wrapperspb.StringValue](decoder, msg)
	fmt.Println(got.GetValue(), err)
	// Output: a-1 <nil>
}
