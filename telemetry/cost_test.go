package telemetry_test

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/telemetry"
)

// subjects are the providers that the cost is known for.
var subjects = []struct {
	name   string
	config func() telemetry.Config

	// The most allocations of a delivery and of a publish without trace headers.
	process, publish float64
}{
	{"noop", func() telemetry.Config {
		return telemetry.Config{TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()}
	}, 0, 0},
	{"globals unset", func() telemetry.Config { return telemetry.Config{} }, 0, 0},
	{"SDK never samples", func() telemetry.Config {
		return telemetry.Config{
			TracerProvider: trace.NewTracerProvider(trace.WithSampler(trace.NeverSample())),
			MeterProvider:  metric.NewMeterProvider(metric.WithReader(metric.NewManualReader())),
		}
	}, 4, 4},
	{"SDK always samples", func() telemetry.Config {
		return telemetry.Config{
			TracerProvider: trace.NewTracerProvider(trace.WithSampler(trace.AlwaysSample())),
			MeterProvider:  metric.NewMeterProvider(metric.WithReader(metric.NewManualReader())),
		}
	}, 9, 8},
}

// delivered is a message that the intake has made a flight for, as in the runtime.
func delivered(meta ...string) *message.Message {
	msg := newMessage("m1", plainDelivery(), meta...)
	flight.Ensure(msg)
	return msg
}

func handler(c *telemetry.Consumer) message.HandlerFunc {
	return c.Middleware(c.Attempt(func(*message.Message) ([]*message.Message, error) { return nil, nil }))
}

type discard struct{}

func (discard) Publish(string, ...*message.Message) error { return nil }
func (discard) Close() error                              { return nil }

func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			tel, err := telemetry.New(s.config())
			if err != nil {
				t.Fatal(err)
			}
			msg, h := delivered(), handler(tel.Consumer(telemetry.ConsumerConfig{Consumer: "billing", Topic: "orders"}))
			if got := testing.AllocsPerRun(1000, func() { _, _ = h(msg) }); got > s.process {
				t.Errorf("a delivery costs %v allocations, want at most %v", got, s.process)
			}
			out, pub := plain("m1"), tel.Publisher(discard{})
			messages := []*message.Message{out}
			if got := testing.AllocsPerRun(1000, func() {
				delete(out.Metadata, "traceparent")
				_ = pub.Publish("orders", messages...)
			}); got > s.publish {
				t.Errorf("a publish costs %v allocations, want at most %v", got, s.publish)
			}
		})
	}
}

// A program sets otel's globals after it has made its runtime. The spans must come all the same. otel takes
// a provider for its placeholders only once in a process, hence a process of its own.
func TestGlobalProvidersSetAfterNewAreUsed(t *testing.T) {
	if os.Getenv("HEADRACE_TEST_GLOBALS") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "HEADRACE_TEST_GLOBALS=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	tel, err := telemetry.New(telemetry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	h := handler(tel.Consumer(telemetry.ConsumerConfig{Topic: "orders"}))
	_, _ = h(delivered()) // nowhere to go yet

	b := bundle{spans: tracetest.NewInMemoryExporter(), reader: metric.NewManualReader()}
	otel.SetTracerProvider(trace.NewTracerProvider(trace.WithSyncer(b.spans)))
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(b.reader)))
	_, _ = h(delivered())
	if got := len(b.spans.GetSpans()); got != 1 {
		t.Errorf("got %d spans, want 1", got)
	}
	if _, ok := b.collect(t)["messaging.process.duration"]; !ok {
		t.Error("messaging.process.duration is missing")
	}

	// The propagator is the one that was there at New: W3C without one.
	otel.SetTextMapPropagator(starter{})
	later, err := telemetry.New(telemetry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		tel  *telemetry.Telemetry
		want string
	}{{tel, "traceparent"}, {later, "x-trace"}} {
		msg := plain("m1")
		if err := tc.tel.Publisher(discard{}).Publish("orders", msg); err != nil {
			t.Fatal(err)
		}
		if len(msg.Metadata) != 1 || msg.Metadata[tc.want] == "" {
			t.Errorf("got metadata %v, want %s alone", msg.Metadata, tc.want)
		}
	}
}

// The spans of a user's own tracer are not ours: with no-op providers they are neither ended nor written to.
func TestNoopProvidersLeaveTheUsersSpanAlone(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	ctx, own := trace.NewTracerProvider(trace.WithSyncer(spans)).Tracer("user").Start(context.Background(), "own")
	tel, err := telemetry.New(telemetry.Config{
		TracerProvider: tracenoop.NewTracerProvider(),
		MeterProvider:  metric.NewMeterProvider(metric.WithReader(metric.NewManualReader())),
	})
	if err != nil {
		t.Fatal(err)
	}
	msg := newMessageIn(ctx, "m1", plainDelivery())
	_, _ = tel.Consumer(telemetry.ConsumerConfig{Topic: "orders"}).Middleware(func(msg *message.Message) ([]*message.Message, error) {
		if got := oteltrace.SpanFromContext(msg.Context()); got != own {
			t.Errorf("got span %v in the handler, want the user's", got)
		}
		return nil, errBroken
	})(msg)
	if n := len(spans.GetSpans()); n != 0 {
		t.Fatalf("%d spans ended, want none", n)
	}
	own.End()
	wantSpan(t, spans.GetSpans(), "Unset", map[string]string{"headrace.outcome": "", "error.type": ""})
}

func BenchmarkProcess(b *testing.B) {
	for _, s := range subjects {
		for _, meta := range [][]string{nil, {"traceparent", upstream}} {
			name := s.name + "/root"
			if meta != nil {
				name = s.name + "/traceparent"
			}
			b.Run(name, func(b *testing.B) {
				tel, err := telemetry.New(s.config())
				if err != nil {
					b.Fatal(err)
				}
				msg, h := delivered(meta...), handler(tel.Consumer(telemetry.ConsumerConfig{Consumer: "billing", Topic: "orders"}))
				b.ReportAllocs()
				for b.Loop() {
					_, _ = h(msg)
				}
			})
		}
	}
}

func BenchmarkPublish(b *testing.B) {
	for _, s := range subjects {
		b.Run(s.name, func(b *testing.B) {
			tel, err := telemetry.New(s.config())
			if err != nil {
				b.Fatal(err)
			}
			msg, pub := plain("m1"), tel.Publisher(discard{})
			messages := []*message.Message{msg}
			b.ReportAllocs()
			for b.Loop() {
				delete(msg.Metadata, "traceparent")
				_ = pub.Publish("orders", messages...)
			}
		})
	}
}
