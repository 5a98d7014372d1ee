package telemetry_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/baggage"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/telemetry"
)

// TestProcessSpans is the contract of the process span: names, kinds, parents, links, attributes, events.
func TestProcessSpans(t *testing.T) {
	kafka := brokers.Delivery{Topic: "orders", Partition: 3, Offset: 42, Key: []byte("customer-7"), Count: 2}
	cases := []struct {
		name     string
		config   telemetry.Config
		consumer telemetry.ConsumerConfig
		optIn    string
		msg      func(ctx context.Context) *message.Message
		stages   func(c *telemetry.Consumer) message.HandlerFunc
	}{
		{name: "no trace headers: a root", stages: always(giving(flight.Handled))},
		{
			name: "traceparent: child and link",
			msg: func(ctx context.Context) *message.Message {
				return newMessageIn(ctx, "m1", plainDelivery(), "traceparent", upstream, "correlation_id", "c1",
					"ce_id", "e1", "ce_source", "/shop", "ce_type", "order.placed")
			},
			stages: always(giving(flight.Committed)),
		},
		{
			name:   "NoParent: root and link",
			config: telemetry.Config{NoParent: true},
			msg: func(ctx context.Context) *message.Message {
				return newMessageIn(ctx, "m1", plainDelivery(), "traceparent", upstream)
			},
			stages: always(giving(flight.Committed)),
		},
		{
			name:     "NoParent of one consumer, for a redrive: root and link",
			consumer: telemetry.ConsumerConfig{NoParent: true},
			msg: func(ctx context.Context) *message.Message {
				return newMessageIn(ctx, "m1", plainDelivery(), "traceparent", upstream)
			},
			stages: always(giving(flight.Committed)),
		},
		{
			name: "redriven: a new trace with links to its creation and its failure",
			msg: func(ctx context.Context) *message.Message {
				ctx = poison.WithRedrive(ctx, &poison.Redrive{Kind: poison.KindRedrive, Record: poison.Record{ID: "d1", TraceParent: failure}})
				return newMessageIn(ctx, "m1", plainDelivery(), "traceparent", upstream)
			},
			stages: always(giving(flight.Committed)),
		},
		{
			name: "delayed: its trace goes on, with a link to its failure",
			msg: func(ctx context.Context) *message.Message {
				ctx = poison.WithRedrive(ctx, &poison.Redrive{Kind: poison.KindDelay, Record: poison.Record{Attempts: 1, TraceParent: failure}})
				return newMessageIn(ctx, "m1", plainDelivery(), "traceparent", upstream)
			},
			stages: always(giving(flight.Committed)),
		},
		{
			name: "parked behind another: its trace goes on, without a second link to its creation",
			msg: func(ctx context.Context) *message.Message {
				ctx = poison.WithRedrive(ctx, &poison.Redrive{Kind: poison.KindRedrive, Record: poison.Record{TraceParent: upstream}})
				return newMessageIn(ctx, "m1", plainDelivery(), "traceparent", upstream)
			},
			stages: always(giving(flight.Committed)),
		},
		{
			name: "CloudEvents traceparent only",
			msg: func(ctx context.Context) *message.Message {
				return newMessageIn(ctx, "", plainDelivery(), "ce_traceparent", upstream, "ce_id", "e1")
			},
			stages: always(giving(flight.Duplicate)),
		},
		{
			name:   "Kafka",
			config: telemetry.Config{System: "kafka"},
			msg: func(ctx context.Context) *message.Message {
				msg := newMessageIn(ctx, "m1", kafka, "ce_correlationid", "c1")
				msg.Payload = nil
				return msg
			},
			stages: always(giving(flight.Stale)),
		},
		{
			name:   "Kafka with messaging/dup: old names too",
			config: telemetry.Config{System: "kafka"},
			optIn:  "http, messaging/dup",
			msg: func(ctx context.Context) *message.Message {
				msg := newMessageIn(ctx, "m1", kafka)
				msg.Payload = nil
				return msg
			},
			stages: always(giving(flight.Committed)),
		},
		{
			name: "third run succeeds: events, no error",
			stages: func(c *telemetry.Consumer) message.HandlerFunc {
				return retrying(c, 5, failing(2, flight.Committed))
			},
		},
		{
			name:   "third run succeeds: spans, no error",
			config: telemetry.Config{Attempts: telemetry.AttemptSpans},
			stages: func(c *telemetry.Consumer) message.HandlerFunc {
				return retrying(c, 5, failing(2, flight.Committed))
			},
		},
		{
			name:   "third run succeeds: attempts off",
			config: telemetry.Config{Attempts: telemetry.AttemptsOff},
			stages: func(c *telemetry.Consumer) message.HandlerFunc {
				return retrying(c, 5, failing(2, flight.Committed))
			},
		},
		{
			name:   "first run succeeds: spans add nothing",
			config: telemetry.Config{Attempts: telemetry.AttemptSpans},
			stages: func(c *telemetry.Consumer) message.HandlerFunc {
				return retrying(c, 5, giving(flight.Committed))
			},
		},
		{
			name: "attempts exhausted, dead-lettered: the last error",
			stages: func(c *telemetry.Consumer) message.HandlerFunc {
				inner := retrying(c, 2, failing(9, flight.Committed))
				return func(msg *message.Message) ([]*message.Message, error) {
					_, err := inner(msg)
					flight.Give(msg.Context(), flight.DeadLettered)
					c.DeadLettered(msg.Context(), (*classify.Classifier)(nil).Classify(err).ErrorType, "2 attempts: "+err.Error())
					return nil, nil
				}
			},
		},
		{
			name: "error returned",
			stages: always(func(*message.Message) ([]*message.Message, error) {
				return nil, classify.Permanent(errBroken)
			}),
		},
		{
			name:   "error returned, its text omitted",
			config: telemetry.Config{OmitErrorText: true},
			stages: always(func(*message.Message) ([]*message.Message, error) {
				return nil, classify.Permanent(errBroken)
			}),
		},
		{
			name: "stop verdict: released",
			stages: always(func(*message.Message) ([]*message.Message, error) {
				return nil, classify.Stop(errBroken)
			}),
		},
		{
			name: "dropped: no error",
			stages: always(func(msg *message.Message) ([]*message.Message, error) {
				flight.Give(msg.Context(), flight.Dropped)
				return nil, nil
			}),
		},
	}
	var b strings.Builder
	for _, tc := range cases {
		fmt.Fprintf(&b, "== %s\n", tc.name)
		t.Setenv("OTEL_SEMCONV_STABILITY_OPT_IN", tc.optIn)
		synctest.Test(t, func(t *testing.T) {
			k := newBundle(t, tc.config)
			tc.consumer.Consumer, tc.consumer.Topic = "billing.orders", "orders"
			c := k.Consumer(tc.consumer)
			msg := newMessage("m1", plainDelivery())
			if tc.msg != nil {
				msg = tc.msg(t.Context())
			}
			_, _ = c.Middleware(tc.stages(c))(msg)
			b.WriteString(describeSpans(k.spans.GetSpans()))
		})
	}
	golden(t, "process", b.String())
}

func always(h message.HandlerFunc) func(*telemetry.Consumer) message.HandlerFunc {
	return func(*telemetry.Consumer) message.HandlerFunc { return h }
}

// The sampler decides on what is known at the start: system, operation, destination, group, partition.
func TestSamplerSeesDestinationAndPartition(t *testing.T) {
	var seen sdktrace.SamplingParameters
	tel, err := telemetry.New(telemetry.Config{
		System: "kafka",
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler(func(p sdktrace.SamplingParameters) {
			seen = p
		}))),
	})
	if err != nil {
		t.Fatal(err)
	}
	c := tel.Consumer(telemetry.ConsumerConfig{Consumer: "billing", Topic: "orders"})
	_, _ = c.Middleware(giving(flight.Handled))(newMessage("m1", brokers.Delivery{Topic: "orders", Partition: 3, Offset: 9}))
	var got strings.Builder
	fmt.Fprintf(&got, "%s (%s)\n", seen.Name, seen.Kind)
	describeAttributes(&got, "", seen.Attributes)
	want := `process orders (consumer)
messaging.consumer.group.name = billing
messaging.destination.name = orders
messaging.destination.partition.id = 3
messaging.operation.name = process
messaging.operation.type = process
messaging.system.name = kafka
`
	if got.String() != want {
		t.Errorf("the sampler saw\n%swant\n%s", got.String(), want)
	}
}

type sampler func(sdktrace.SamplingParameters)

func (s sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	s(p)
	return sdktrace.SamplingResult{Decision: sdktrace.Drop}
}

func (sampler) Description() string { return "sampler" }

// A shutdown ends the message's context while the handler waits for a database. The handler returns the
// context's error; it must not be reported as a failure (I5, D5).
func TestD5ShutdownIsNoError(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	c := k.Consumer(telemetry.ConsumerConfig{Consumer: "billing", Topic: "orders"})
	ctx, cancel := context.WithCancel(context.Background())
	msg := newMessageIn(ctx, "m1", plainDelivery())
	_, err := c.Middleware(c.Attempt(func(msg *message.Message) ([]*message.Message, error) {
		cancel()
		return nil, fmt.Errorf("charge: %w", msg.Context().Err())
	}))(msg)
	if err == nil {
		t.Fatal("the error was swallowed")
	}
	wantSpan(t, k.spans.GetSpans(), "Unset", map[string]string{"headrace.outcome": "released", "error.type": ""})
	if e := k.spans.GetSpans()[0].Events; len(e) != 0 {
		t.Errorf("got events %v of a run that shutdown ended, want none", e)
	}
}

// A nack ends the message's context in some adapters. That is a failure, not a shutdown.
func TestNackedDeliveryHasFailedThoughItsContextEnded(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	c := k.Consumer(telemetry.ConsumerConfig{Consumer: "billing", Topic: "orders"})
	ctx, cancel := context.WithCancel(context.Background())
	msg := newMessageIn(ctx, "m1", plainDelivery())
	_, _ = c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		flight.From(msg.Context()).Nack()
		cancel()
		return nil, errBroken
	})(msg)
	wantSpan(t, k.spans.GetSpans(), "Error", map[string]string{"headrace.outcome": "failed"})
}

// A drop is acked, and its error goes on outwards: it is no failure.
func TestAckedDropIsNoFailureThoughItsErrorIsReturned(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	c := k.Consumer(telemetry.ConsumerConfig{Consumer: "billing", Topic: "orders"})
	_, _ = c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		flight.Give(msg.Context(), flight.Dropped)
		flight.From(msg.Context()).Ack()
		return nil, classify.Drop(errBroken)
	})(newMessage("m1", plainDelivery()))
	wantSpan(t, k.spans.GetSpans(), "Unset", map[string]string{"headrace.outcome": "dropped", "error.type": ""})
}

// The conventions have one word for an error without a name.
func TestNamelessErrorIsOther(t *testing.T) {
	k := newBundle(t, telemetry.Config{Classifier: classify.New()})
	c := k.Consumer(telemetry.ConsumerConfig{Topic: "orders"})
	_, _ = c.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errBroken })(newMessage("m1", plainDelivery()))
	wantSpan(t, k.spans.GetSpans(), "Error", map[string]string{"error.type": "_OTHER"})
}

// A release gives the delivery back with a nil error: neither a success nor a failure.
func TestReleasedDeliveryIsNeitherHandledNorFailed(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	c := k.Consumer(telemetry.ConsumerConfig{Consumer: "billing", Topic: "orders"})
	_, _ = c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		flight.From(msg.Context()).Release()
		return nil, nil
	})(newMessage("m1", plainDelivery()))
	wantSpan(t, k.spans.GetSpans(), "Unset", map[string]string{"headrace.outcome": "released", "error.type": ""})
}

// A handler panics, or ends its goroutine, where nothing inside recovers: the span ends all the same.
func TestPanicAndGoexitEndTheSpan(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func()
	}{
		{"panic", func() { panic("boom") }},
		{"nil panic", func() { panic(nil) }},
		{"goexit", runtime.Goexit},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := newBundle(t, telemetry.Config{})
			c := k.Consumer(telemetry.ConsumerConfig{Consumer: "billing", Topic: "orders"})
			msg := newMessage("m1", plainDelivery())
			before := msg.Context()
			done := make(chan any)
			go func() {
				defer func() { done <- recover() }()
				_, _ = c.Middleware(c.Attempt(func(*message.Message) ([]*message.Message, error) {
					tc.end()
					return nil, nil
				}))(msg)
			}()
			if value := <-done; value == nil && tc.name != "goexit" {
				t.Error("the panic was swallowed")
			}
			wantSpan(t, k.spans.GetSpans(), "Error", map[string]string{"headrace.outcome": "failed", "error.type": "panic"})
			if msg.Context() != before {
				t.Error("the message's context was not restored")
			}
		})
	}
}

// An error's own Error method panics: the delivery's outcome is as it was, the text is left out.
func TestErrorWhoseTextPanicsIsReportedWithoutText(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	c := k.Consumer(telemetry.ConsumerConfig{Topic: "orders"})
	_, err := c.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, mute{} })(newMessage("m1", plainDelivery()))
	if _, ok := err.(mute); !ok {
		t.Errorf("got error of type %T, want it unchanged", err)
	}
	span := k.spans.GetSpans()[0]
	if span.Status.Code.String() != "Error" || span.Status.Description != "" {
		t.Errorf("got status %v, want Error without text", span.Status)
	}
}

type mute struct{}

func (mute) Error() string { panic("no text") }

// The text of an error can be as long as the payload it quotes; a span is not the place for it.
func TestErrorTextIsBounded(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	c := k.Consumer(telemetry.ConsumerConfig{Topic: "orders"})
	long := strings.Repeat("ü", 1000)
	_, _ = c.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, fmt.Errorf("x%s", long) })(newMessage("m1", plainDelivery()))
	got := k.spans.GetSpans()[0].Status.Description
	if len(got) > 256 || len(got) < 250 || !strings.HasSuffix(got, "ü") {
		t.Errorf("got %d bytes ending in %q, want at most 256 and whole characters", len(got), got[len(got)-2:])
	}
}

func TestHandlerContextHasSpanAndBaggageAndIsRestored(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	c := k.Consumer(telemetry.ConsumerConfig{Topic: "orders"})
	msg := newMessage("m1", plainDelivery(), "traceparent", upstream, "baggage", "tenant=acme")
	before := msg.Context()
	_, _ = c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		if got := trace.SpanContextFromContext(ctx).TraceID().String(); got != upstream[3:35] {
			t.Errorf("got trace %s in the handler, want %s", got, upstream[3:35])
		}
		if got := baggage.FromContext(ctx).Member("tenant").Value(); got != "acme" {
			t.Errorf("got tenant %q in the baggage, want acme", got)
		}
		if flight.From(ctx) == nil || brokers.DeliveryOf(ctx) == nil {
			t.Error("the handler's context lost the delivery")
		}
		return nil, nil
	})(msg)
	if msg.Context() != before {
		t.Error("the message's context was not restored")
	}
}

// With AttemptSpans what the handler traces in its second run belongs to that run.
func TestUserSpanIsChildOfItsAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newBundle(t, telemetry.Config{Attempts: telemetry.AttemptSpans})
		c := k.Consumer(telemetry.ConsumerConfig{Topic: "orders"})
		var inHandler trace.SpanContext
		h := failing(1, flight.Handled)
		_, _ = c.Middleware(retrying(c, 2, func(msg *message.Message) ([]*message.Message, error) {
			inHandler = trace.SpanContextFromContext(msg.Context())
			return h(msg)
		}))(newMessage("m1", plainDelivery()))
		for _, s := range k.spans.GetSpans() {
			if s.SpanContext.SpanID() == inHandler.SpanID() {
				if s.Name != "attempt orders" || s.StartTime.Before(time.Now().Add(-time.Second)) {
					t.Errorf("the second run's context has span %q of %v, want its own attempt span", s.Name, s.StartTime)
				}
				return
			}
		}
		t.Error("the second run's span was not exported")
	})
}

// One middleware added to a plain router serves handlers of several topics.
func TestTopicOfTheRouterNamesTheSpan(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	c := k.Consumer(telemetry.ConsumerConfig{})
	_, _ = c.Middleware(giving(flight.Handled))(newMessage("m1", plainDelivery()))
	if got := k.spans.GetSpans()[0].Name; got != "process" {
		t.Errorf("got name %q outside a router, want %q", got, "process")
	}
}

// wantSpan checks the only span's status and attributes; "" wants an attribute absent.
func wantSpan(t *testing.T, spans tracetest.SpanStubs, status string, attrs map[string]string) {
	t.Helper()
	if len(spans) != 1 {
		t.Fatalf("got %d spans, want 1:\n%s", len(spans), describeSpans(spans))
	}
	got := map[string]string{}
	for _, a := range spans[0].Attributes {
		got[string(a.Key)] = a.Value.String()
	}
	if s := spans[0].Status.Code.String(); s != status {
		t.Errorf("got status %s, want %s", s, status)
	}
	for k, want := range attrs {
		if got[k] != want {
			t.Errorf("got %s %q, want %q", k, got[k], want)
		}
	}
}
