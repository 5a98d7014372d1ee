package telemetry_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/telemetry"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// upstream is the creation context of the messages in these tests.
const upstream = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// failure is a span in which a message failed before.
const failure = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// bundle is a Telemetry and what it gave out.
type bundle struct {
	*telemetry.Telemetry
	spans  *tracetest.InMemoryExporter
	reader *metric.ManualReader
}

func newBundle(t testing.TB, cfg telemetry.Config) bundle {
	t.Helper()
	b := bundle{spans: tracetest.NewInMemoryExporter(), reader: metric.NewManualReader()}
	if cfg.Classifier == nil {
		cfg.Classifier = ledgerRules
	}
	cfg.TracerProvider = trace.NewTracerProvider(trace.WithSyncer(b.spans))
	cfg.MeterProvider = metric.NewMeterProvider(metric.WithReader(b.reader))
	var err error
	if b.Telemetry, err = telemetry.New(cfg); err != nil {
		t.Fatal(err)
	}
	return b
}

// newMessage returns a message that an adapter has delivered.
func newMessage(id string, d brokers.Delivery, meta ...string) *message.Message {
	return newMessageIn(context.Background(), id, d, meta...)
}

func newMessageIn(ctx context.Context, id string, d brokers.Delivery, meta ...string) *message.Message {
	msg := message.NewMessage(id, []byte("{}"))
	msg.SetContext(brokers.WithDelivery(ctx, &d))
	for i := 0; i < len(meta); i += 2 {
		msg.Metadata[meta[i]] = meta[i+1]
	}
	return msg
}

// plainDelivery has nothing of a broker.
func plainDelivery() brokers.Delivery {
	return brokers.Delivery{Topic: "orders", Partition: -1, Offset: -1}
}

// retrying stands for the stage that retries: it runs h up to n times with a second between.
func retrying(c *telemetry.Consumer, n int, h message.HandlerFunc) message.HandlerFunc {
	run := c.Attempt(h)
	return func(msg *message.Message) ([]*message.Message, error) {
		for i := 1; ; i++ {
			flight.From(msg.Context()).StartAttempt()
			out, err := run(msg)
			if err == nil || i == n {
				return out, err
			}
			c.Retried(msg.Context(), time.Second, "timeout")
			time.Sleep(time.Second)
		}
	}
}

// failing returns a handler that takes 10 ms and fails n times before it gives the receipt.
func failing(n int, r flight.Receipt) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		time.Sleep(10 * time.Millisecond)
		if n--; n >= 0 {
			return nil, context.DeadlineExceeded
		}
		flight.Give(msg.Context(), r)
		return nil, nil
	}
}

func giving(r flight.Receipt) message.HandlerFunc { return failing(0, r) }

var errBroken = errors.New("the ledger is closed")

// ledgerRules knows errBroken, so that no test depends on how classify names unknown errors.
var ledgerRules = classify.New(func(err error) (classify.Result, bool) {
	return classify.Result{Verdict: classify.VerdictPoison, ErrorType: "ledger_closed"}, err == errBroken
})

// golden compares got with the file, or writes it with -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal([]byte(got), want) {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		gl, wl := "(end)", "(end)"
		if i < len(g) {
			gl = g[i]
		}
		if i < len(w) {
			wl = w[i]
		}
		if gl != wl {
			t.Fatalf("%s differs in line %d (run with -update if it should)\n got: %s\nwant: %s\n\nall of it:\n%s", file, i+1, gl, wl, got)
		}
	}
}

// describeSpans writes spans in order of their start, with names in the place of ids.
func describeSpans(spans tracetest.SpanStubs) string {
	names := map[string]string{"b7ad6b7169203331": "upstream", "0200000000000000": "caller", "0000000000000000": "none"}
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int {
		return cmp.Or(a.StartTime.Compare(b.StartTime), b.EndTime.Compare(a.EndTime))
	})
	for _, s := range spans {
		names[s.SpanContext.SpanID().String()] = s.Name
	}
	name := func(sc oteltrace.SpanContext) string {
		if n, ok := names[sc.SpanID().String()]; ok {
			return n
		}
		if strings.Contains(failure, sc.SpanID().String()) {
			return "failure"
		}
		return "elsewhere"
	}
	var b strings.Builder
	for _, s := range spans {
		fmt.Fprintf(&b, "%s (%s, %v)\n", s.Name, s.SpanKind, s.EndTime.Sub(s.StartTime))
		fmt.Fprintf(&b, "  parent: %s\n", name(s.Parent))
		for _, l := range s.Links {
			fmt.Fprintf(&b, "  link: %s\n", name(l.SpanContext))
		}
		if s.Status.Code != codes.Unset {
			fmt.Fprintf(&b, "  status: %s %q\n", s.Status.Code, s.Status.Description)
		}
		describeAttributes(&b, "  ", s.Attributes)
		for _, e := range s.Events {
			fmt.Fprintf(&b, "  event at %v: %s\n", e.Time.Sub(s.StartTime), e.Name)
			describeAttributes(&b, "    ", e.Attributes)
		}
	}
	return b.String()
}

func describeAttributes(b *strings.Builder, indent string, attrs []attribute.KeyValue) {
	attrs = slices.Clone(attrs)
	slices.SortFunc(attrs, func(x, y attribute.KeyValue) int { return strings.Compare(string(x.Key), string(y.Key)) })
	for _, a := range attrs {
		fmt.Fprintf(b, "%s%s = %s\n", indent, a.Key, a.Value.String())
	}
}

// collect returns all metrics by name.
func (b bundle) collect(t *testing.T) map[string]metricdata.Metrics {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := b.reader.Collect(context.Background(), &rm); err != nil {
		t.Fatal(err)
	}
	found := map[string]metricdata.Metrics{}
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			found[m.Name] = m
		}
	}
	return found
}

// describeMetrics writes metrics in order of their names.
func describeMetrics(metrics map[string]metricdata.Metrics) string {
	var names []string
	for n := range metrics {
		names = append(names, n)
	}
	slices.Sort(names)
	var b strings.Builder
	for _, n := range names {
		m := metrics[n]
		var kind string
		var points []string
		point := func(set attribute.Set, value string) {
			var p strings.Builder
			fmt.Fprintf(&p, "  %s\n", value)
			describeAttributes(&p, "    ", set.ToSlice())
			points = append(points, p.String())
		}
		switch data := m.Data.(type) {
		case metricdata.Histogram[float64]:
			kind = "histogram"
			if len(data.DataPoints) > 0 {
				kind = fmt.Sprintf("histogram %v", data.DataPoints[0].Bounds)
			}
			for _, p := range data.DataPoints {
				point(p.Attributes, fmt.Sprintf("count %d, sum %.3f", p.Count, p.Sum))
			}
		case metricdata.Sum[int64]:
			kind = "counter"
			if !data.IsMonotonic {
				kind = "updowncounter"
			}
			for _, p := range data.DataPoints {
				point(p.Attributes, fmt.Sprint(p.Value))
			}
		case metricdata.Gauge[int64]:
			kind = "gauge"
			for _, p := range data.DataPoints {
				point(p.Attributes, fmt.Sprint(p.Value))
			}
		case metricdata.Gauge[float64]:
			kind = "gauge"
			for _, p := range data.DataPoints {
				point(p.Attributes, fmt.Sprint(p.Value))
			}
		default:
			kind = fmt.Sprintf("%T", data)
		}
		slices.Sort(points)
		fmt.Fprintf(&b, "%s, %s, %s\n  %q\n%s", m.Name, m.Unit, kind, m.Description, strings.Join(points, ""))
	}
	return b.String()
}
