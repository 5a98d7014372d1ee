package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/telemetry"
)

// publish -> process -> publish -> process, on a plain Watermill router: one trace, each span the child
// of the one before.
func TestTwoHopsAreOneTrace(t *testing.T) {
	k := newBundle(t, telemetry.Config{System: "gochannel"})
	channel := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	router.AddMiddleware(k.Consumer(telemetry.ConsumerConfig{}).Middleware)
	publisher := k.Publisher(channel)

	handled := make(chan struct{})
	router.AddHandler("invoice", "orders", channel, "invoices", publisher,
		func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("m2", msg.Payload)}, nil
		})
	router.AddConsumerHandler("print", "invoices", channel, func(*message.Message) error {
		close(handled)
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()

	if err := publisher.Publish("orders", message.NewMessage("m1", nil)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-handled:
	case <-time.After(10 * time.Second):
		t.Fatal("the second hop did not happen in 10 s")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	spans := map[string]trace.SpanContext{}
	parents := map[string]trace.SpanID{}
	for _, s := range k.spans.GetSpans() {
		spans[s.Name], parents[s.Name] = s.SpanContext, s.Parent.SpanID()
	}
	chain := []string{"send orders", "process orders", "send invoices", "process invoices"}
	for i, name := range chain {
		if !spans[name].IsValid() {
			t.Fatalf("there is no span %q; got %v", name, spans)
		}
		if got, want := spans[name].TraceID(), spans[chain[0]].TraceID(); got != want {
			t.Errorf("%s: got trace %s, want %s", name, got, want)
		}
		if i > 0 && parents[name] != spans[chain[i-1]].SpanID() {
			t.Errorf("%s: its parent is not %s", name, chain[i-1])
		}
	}
}

// A row is written in the handler's transaction and published by a relay later, in no span.
func TestOutboxHopIsOneTrace(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	in := k.Consumer(telemetry.ConsumerConfig{Topic: "orders"})
	row := message.NewMessage("m2", nil)
	_, _ = in.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		telemetry.Inject(msg.Context(), row.Metadata)
		return nil, nil
	})(newMessage("m1", plainDelivery(), "traceparent", upstream))

	relayed := &recorder{}
	if err := k.Publisher(relayed).Publish("invoices", row); err != nil {
		t.Fatal(err)
	}
	out := k.Consumer(telemetry.ConsumerConfig{Topic: "invoices"})
	_, _ = out.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(relayed.got[0])
	for _, s := range k.spans.GetSpans() {
		if got := s.SpanContext.TraceID().String(); got != upstream[3:35] {
			t.Errorf("%s: got trace %s, want %s", s.Name, got, upstream[3:35])
		}
	}
}

func TestLogsHaveTheIDsOfTheSpan(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	var out bytes.Buffer
	log := slog.New(telemetry.LogHandler(slog.NewJSONHandler(&out, nil)))
	var sc trace.SpanContext
	c := k.Consumer(telemetry.ConsumerConfig{Topic: "orders"})
	_, _ = c.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		sc = trace.SpanContextFromContext(msg.Context())
		log.With("service", "billing").WithGroup("order").With("id", 7).WithGroup("").InfoContext(msg.Context(), "placed", "total", 12)
		log.WithGroup("order").InfoContext(context.Background(), "no span", "total", 12)
		log.InfoContext(msg.Context(), "no group")
		return nil, nil
	})(newMessage("m1", plainDelivery()))

	dec := json.NewDecoder(&out)
	for _, want := range []struct {
		msg     string
		traced  bool
		service any
		grouped map[string]any
	}{
		{"placed", true, "billing", map[string]any{"id": 7.0, "total": 12.0}},
		{"no span", false, nil, map[string]any{"total": 12.0}},
		{"no group", true, nil, nil},
	} {
		var got map[string]any
		if err := dec.Decode(&got); err != nil {
			t.Fatal(err)
		}
		var traceID, spanID any
		if want.traced {
			traceID, spanID = sc.TraceID().String(), sc.SpanID().String()
		}
		if got["msg"] != want.msg || got["trace_id"] != traceID || got["span_id"] != spanID || got["service"] != want.service {
			t.Errorf("got %v, want %q with trace_id %v, span_id %v and service %v at the top", got, want.msg, traceID, spanID, want.service)
		}
		group, _ := got["order"].(map[string]any)
		if len(group) != len(want.grouped) || group["id"] != want.grouped["id"] || group["total"] != want.grouped["total"] {
			t.Errorf("%s: got group %v, want %v", want.msg, group, want.grouped)
		}
	}
}
