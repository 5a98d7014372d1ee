package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/baggage"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/headrace-go/headrace/telemetry"
)

// recorder is a publisher that keeps copies of what it was given.
type recorder struct {
	topics []string
	got    []*message.Message
	err    error
	closed bool
}

func (r *recorder) Publish(topic string, messages ...*message.Message) error {
	time.Sleep(2 * time.Millisecond)
	for _, m := range messages {
		r.topics = append(r.topics, topic)
		r.got = append(r.got, m.CopyWithContext())
	}
	return r.err
}

func (r *recorder) Close() error { r.closed = true; return errors.New("closed") }

func plain(id string, meta ...string) *message.Message {
	m := message.NewMessage(id, []byte("{}"))
	for i := 0; i < len(meta); i += 2 {
		m.Metadata[meta[i]] = meta[i+1]
	}
	return m
}

// TestSendSpans is the contract of the send span, and of what is written into the messages.
func TestSendSpans(t *testing.T) {
	cases := []struct {
		name   string
		config telemetry.Config
		err    error
		do     func(ctx context.Context) []*message.Message // ctx has the span "caller"
	}{
		{name: "one message: child of its context, injected", do: func(ctx context.Context) []*message.Message {
			m := plain("m1", "ce_correlationid", "c1", "ce_type", "order.placed")
			m.SetContext(ctx)
			return []*message.Message{m}
		}},
		{name: "no span in its context: a root", do: func(context.Context) []*message.Message {
			return []*message.Message{plain("m1")}
		}},
		{name: "nil metadata", do: func(context.Context) []*message.Message {
			m := plain("m1")
			m.Metadata = nil
			return []*message.Message{m}
		}},
		{name: "created before, called in a span: link", do: func(ctx context.Context) []*message.Message {
			m := plain("m1", "traceparent", upstream)
			m.SetContext(ctx)
			return []*message.Message{m}
		}},
		{name: "created before, as by an outbox: link and child", do: func(context.Context) []*message.Message {
			return []*message.Message{plain("m1", "traceparent", upstream)}
		}},
		{name: "created before, NoParent: link", config: telemetry.Config{NoParent: true}, do: func(context.Context) []*message.Message {
			return []*message.Message{plain("m1", "traceparent", upstream)}
		}},
		{name: "malformed traceparent: replaced", do: func(context.Context) []*message.Message {
			return []*message.Message{plain("m1", "traceparent", "00-zz", "tracestate", "a=b")}
		}},
		{name: "the event's own trace is not the hop", do: func(context.Context) []*message.Message {
			return []*message.Message{plain("m1", "ce_traceparent", upstream)}
		}},
		{name: "batch: links only, each keeps its own trace", do: func(ctx context.Context) []*message.Message {
			a, b, c := plain("m1"), plain("m2", "traceparent", upstream), plain("m3")
			a.SetContext(ctx)
			return []*message.Message{a, b, c}
		}},
		{name: "batch, all created before: client", do: func(context.Context) []*message.Message {
			return []*message.Message{plain("m1", "traceparent", upstream), plain("m2", "traceparent", upstream)}
		}},
		{name: "failure", err: errBroken, do: func(context.Context) []*message.Message {
			return []*message.Message{plain("m1")}
		}},
		{name: "batch of nothing: no span", do: func(context.Context) []*message.Message { return nil }},
	}
	var b strings.Builder
	for _, tc := range cases {
		fmt.Fprintf(&b, "== %s\n", tc.name)
		synctest.Test(t, func(t *testing.T) {
			k := newBundle(t, tc.config)
			pub := &recorder{err: tc.err}
			// The caller's own span is no part of the output.
			ctx := trace.ContextWithRemoteSpanContext(context.Background(), caller())
			if err := k.Publisher(pub).Publish("orders", tc.do(ctx)...); !errors.Is(err, tc.err) {
				t.Errorf("%s: got error %v, want %v", tc.name, err, tc.err)
			}
			spans := k.spans.GetSpans()
			b.WriteString(describeSpans(spans))
			for _, m := range pub.got {
				created := "none"
				switch sc := trace.SpanContextFromContext(telemetry.Extract(context.Background(), message.Metadata{"traceparent": m.Metadata["traceparent"]})); {
				case sc.SpanID() == spans[0].SpanContext.SpanID():
					created = "send orders"
				case sc.SpanID().String() == upstream[36:52]:
					created = "upstream"
				case sc.SpanID() == caller().SpanID():
					created = "caller"
				}
				fmt.Fprintf(&b, "  %s was created in: %s%s\n", m.UUID, created, orNothing(" with state ", m.Metadata["tracestate"]))
			}
		})
	}
	golden(t, "send", b.String())
}

func orNothing(label, s string) string {
	if s == "" {
		return ""
	}
	return label + s
}

func caller() trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	})
}

// A batch can gather messages of several traces. The send span can be child of one only; the others must
// not move to that trace.
func TestBatchDoesNotMoveMessagesToAnotherTrace(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	pub := &recorder{}
	other := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{7}, SpanID: trace.SpanID{8}, TraceFlags: trace.FlagsSampled})
	a, b := plain("m1"), plain("m2")
	a.SetContext(trace.ContextWithRemoteSpanContext(context.Background(), caller()))
	b.SetContext(trace.ContextWithRemoteSpanContext(context.Background(), other))
	if err := k.Publisher(pub).Publish("orders", a, b); err != nil {
		t.Fatal(err)
	}
	got := []string{pub.got[0].Metadata["traceparent"][3:35], pub.got[1].Metadata["traceparent"][3:35]}
	want := []string{caller().TraceID().String(), other.TraceID().String()}
	if !slices.Equal(got, want) {
		t.Errorf("got traces %v, want %v", got, want)
	}
}

func TestBaggageGoesIntoMessagesAndIsNotOverwritten(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	pub := &recorder{}
	member, _ := baggage.NewMember("tenant", "acme")
	bag, _ := baggage.New(member)
	a, b := plain("m1"), plain("m2", "baggage", "tenant=other")
	for _, m := range []*message.Message{a, b} {
		m.SetContext(baggage.ContextWithBaggage(context.Background(), bag))
	}
	if err := k.Publisher(pub).Publish("orders", a, b); err != nil {
		t.Fatal(err)
	}
	got := []string{pub.got[0].Metadata["baggage"], pub.got[1].Metadata["baggage"]}
	if want := []string{"tenant=acme", "tenant=other"}; !slices.Equal(got, want) {
		t.Errorf("got baggage %v, want %v", got, want)
	}
}

// A service that traces nothing stands between two that do: the trace must go through it.
func TestNoopProvidersPassTheTraceOn(t *testing.T) {
	tel, err := telemetry.New(telemetry.Config{
		TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider(),
	})
	if err != nil {
		t.Fatal(err)
	}
	pub := &recorder{}
	publisher := tel.Publisher(pub)
	in := newMessage("m1", plainDelivery(), "traceparent", upstream, "baggage", "tenant=acme")
	before := in.Context()
	c := tel.Consumer(telemetry.ConsumerConfig{Topic: "orders"})
	out, err := c.Middleware(c.Attempt(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{plain("m2")}, nil
	}))(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := publisher.Publish("invoices", out...); err != nil {
		t.Fatal(err)
	}
	got := []string{pub.got[0].Metadata["traceparent"], pub.got[0].Metadata["baggage"]}
	if want := []string{upstream, "tenant=acme"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if in.Context() != before {
		t.Error("the message's context was not restored")
	}
}

// Publishing a message that there is nothing to write into leaves it as it is.
func TestNoopProvidersWriteNothing(t *testing.T) {
	tel, err := telemetry.New(telemetry.Config{TracerProvider: tracenoop.NewTracerProvider()})
	if err != nil {
		t.Fatal(err)
	}
	m := plain("m1")
	m.Metadata = nil
	if err := tel.Publisher(&recorder{}).Publish("orders", m); err != nil {
		t.Fatal(err)
	}
	if m.Metadata != nil {
		t.Errorf("got metadata %v, want none", m.Metadata)
	}
}

func TestPublisherPanicEndsTheSpan(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = k.Publisher(broken{}).Publish("orders", plain("m1"))
	}()
	wantSpan(t, k.spans.GetSpans(), "Error", map[string]string{"error.type": "panic"})
}

type broken struct{ message.Publisher }

func (broken) Publish(string, ...*message.Message) error { panic("boom") }

func TestCloseClosesThePublisher(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	pub := &recorder{}
	if err := k.Publisher(pub).Close(); err == nil || !pub.closed {
		t.Errorf("got error %v, closed %t; want the publisher's own error and true", err, pub.closed)
	}
}

// starter is a propagator of the user's own form.
type starter struct{}

func (starter) Fields() []string { return []string{"x-trace"} }

func (starter) Inject(ctx context.Context, c propagation.TextMapCarrier) {
	m := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, m)
	if m["traceparent"] != "" {
		c.Set("x-trace", m["traceparent"])
	}
}

func (starter) Extract(ctx context.Context, c propagation.TextMapCarrier) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": c.Get("x-trace")})
}

// A user with a propagator of their own and an outbox: the row was written in W3C form, consumers read
// theirs. The trace must go on, in their form.
func TestOwnPropagatorReadsW3CAndWritesItsOwn(t *testing.T) {
	k := newBundle(t, telemetry.Config{Propagator: starter{}})
	pub := &recorder{}
	fresh, row, sent := plain("m1"), plain("m2", "traceparent", upstream), plain("m3", "x-trace", upstream)
	for _, m := range []*message.Message{fresh, row, sent} {
		if err := k.Publisher(pub).Publish("orders", m); err != nil {
			t.Fatal(err)
		}
	}
	if got := pub.got[0].Metadata; got["x-trace"] == "" || got["traceparent"] != "" {
		t.Errorf("got metadata %v of a fresh message, want x-trace alone", got)
	}
	for _, m := range pub.got[1:] {
		if got := m.Metadata["x-trace"]; got != upstream {
			t.Errorf("%s: got x-trace %q, want %q", m.UUID, got, upstream)
		}
	}
	k.spans.Reset()
	c := k.Consumer(telemetry.ConsumerConfig{Topic: "orders"})
	for _, key := range []string{"x-trace", "traceparent"} {
		_, _ = c.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(newMessage(key, plainDelivery(), key, upstream))
	}
	for _, s := range k.spans.GetSpans() {
		if got := s.Parent.SpanID().String(); got != upstream[36:52] {
			t.Errorf("got parent %s, want %s", got, upstream[36:52])
		}
	}
}
