package telemetry_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/telemetry"
)

const start = "00-11111111111111111111111111111111-2222222222222222-01"

func TestExtract(t *testing.T) {
	cases := []struct {
		name              string
		meta              message.Metadata
		trace, state, bag string
	}{
		{"nothing", message.Metadata{"a": "b"}, "", "", ""},
		{"nil metadata", nil, "", "", ""},
		{"transport header", message.Metadata{"traceparent": upstream, "tracestate": "v=1"}, upstream, "v=1", ""},
		{"transport header before the event's", message.Metadata{"traceparent": upstream, "ce_traceparent": start, "ce_tracestate": "s=1"}, upstream, "", ""},
		{"the event's alone", message.Metadata{"ce_traceparent": start, "ce_tracestate": "s=1"}, start, "s=1", ""},
		{"malformed transport header", message.Metadata{"traceparent": "00-x", "ce_traceparent": start}, start, "", ""},
		{"all zero", message.Metadata{"traceparent": "00-00000000000000000000000000000000-0000000000000000-01"}, "", "", ""},
		{"both malformed", message.Metadata{"traceparent": "?", "ce_traceparent": "?"}, "", "", ""},
		{"malformed tracestate", message.Metadata{"traceparent": upstream, "tracestate": "===,"}, upstream, "", ""},
		{"baggage alone", message.Metadata{"baggage": "tenant=acme"}, "", "", "acme"},
		{"malformed baggage", message.Metadata{"baggage": "=;=,\x00"}, "", "", ""},
		{"all", message.Metadata{"traceparent": upstream, "baggage": "tenant=acme"}, upstream, "", "acme"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			ctx := telemetry.Extract(context.Background(), tc.meta)
			sc := trace.SpanContextFromContext(ctx)
			got := ""
			if sc.IsValid() {
				got = "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + sc.TraceFlags().String()
				if !sc.IsRemote() {
					t.Error("the span context is not marked remote")
				}
			}
			if got != tc.trace || sc.TraceState().String() != tc.state {
				t.Errorf("%v: got %q with state %q, want %q with %q", tc.meta, got, sc.TraceState(), tc.trace, tc.state)
			}
			if bag := baggage.FromContext(ctx).Member("tenant").Value(); bag != tc.bag {
				t.Errorf("%v: got baggage %q, want %q", tc.meta, bag, tc.bag)
			}
		})
	}
}

func TestExtractOfNothingReturnsTheSameContext(t *testing.T) {
	ctx := context.WithValue(context.Background(), "k", "v") //nolint:staticcheck // any context will do
	if got := telemetry.Extract(ctx, message.Metadata{"ce_id": "1"}); got != ctx {
		t.Errorf("got %v, want the context unchanged", got)
	}
}

func TestInjectKeepsACreationContext(t *testing.T) {
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), caller())
	md := message.Metadata{"traceparent": upstream, "tracestate": "v=1"}
	telemetry.Inject(ctx, md)
	if md["traceparent"] != upstream || md["tracestate"] != "v=1" {
		t.Errorf("got %v, want it unchanged", md)
	}
}

func TestInjectThenExtractIsTheSameSpan(t *testing.T) {
	state, _ := trace.ParseTraceState("v=1")
	want := caller().WithTraceState(state)
	md := message.Metadata{"tracestate": "of=another"}
	telemetry.Inject(trace.ContextWithRemoteSpanContext(context.Background(), want), md)
	got := trace.SpanContextFromContext(telemetry.Extract(context.Background(), md))
	if !got.Equal(want.WithRemote(true)) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestInjectWithoutSpanWritesNothing(t *testing.T) {
	md := message.Metadata{}
	telemetry.Inject(context.Background(), md)
	if len(md) != 0 {
		t.Errorf("got %v, want nothing", md)
	}
}

func FuzzExtract(f *testing.F) {
	f.Add(upstream, "v=1", "tenant=acme", start)
	f.Fuzz(func(t *testing.T, parent, state, bag, event string) {
		md := message.Metadata{"traceparent": parent, "tracestate": state, "baggage": bag, "ce_traceparent": event}
		ctx := telemetry.Extract(context.Background(), md)
		sc := trace.SpanContextFromContext(ctx)
		if !sc.IsValid() {
			return
		}
		again := message.Metadata{}
		telemetry.Inject(ctx, again)
		if back := trace.SpanContextFromContext(telemetry.Extract(context.Background(), again)); !back.Equal(sc) {
			t.Errorf("%v: got %v after a second hop, want %v", md, back, sc)
		}
	})
}
