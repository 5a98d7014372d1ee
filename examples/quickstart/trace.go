package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// tracing makes the spans of all services and sends them where the user wants them.
type tracing struct {
	options   []sdktrace.TracerProviderOption
	providers []*sdktrace.TracerProvider
	spans     *spans       // nil without -trace
	exporter  *remembering // nil where nothing is exported
}

func newTracing(ctx context.Context, print bool) (*tracing, error) {
	t := &tracing{}
	if print {
		t.spans = &spans{}
		t.options = append(t.options, sdktrace.WithSyncer(t.spans))
	}
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" {
		exporter, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("export traces to OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
		}
		t.exporter = &remembering{SpanExporter: exporter}
		t.options = append(t.options, sdktrace.WithBatcher(t.exporter))
	}
	return t, nil
}

// provider makes the spans of one service.
func (t *tracing) provider(service string) *sdktrace.TracerProvider {
	p := sdktrace.NewTracerProvider(append([]sdktrace.TracerProviderOption{
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", service))),
		sdktrace.WithSampler(sdktrace.AlwaysSample()),
	}, t.options...)...)
	t.providers = append(t.providers, p)
	return p
}

// close sends what was not sent.
func (t *tracing) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var errs []error
	for _, p := range t.providers {
		errs = append(errs, p.ForceFlush(ctx))
	}
	if t.exporter != nil {
		if err := t.exporter.first.Load(); err != nil {
			errs = append(errs, *err)
		}
	}
	for _, p := range t.providers { // they share the exporter: the first one closes it
		errs = append(errs, p.Shutdown(ctx))
	}
	return errors.Join(errs...)
}

// remembering keeps the first error of an export. The batcher exports by itself too, where nobody is told.
type remembering struct {
	sdktrace.SpanExporter
	first atomic.Pointer[error]
}

// ExportSpans implements sdktrace.SpanExporter.
func (r *remembering) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := r.SpanExporter.ExportSpans(ctx, spans)
	if err != nil {
		r.first.CompareAndSwap(nil, &err)
	}
	return err
}

// spans keeps the spans of a run, which has about two thousand.
type spans struct {
	mu  sync.Mutex
	all []sdktrace.ReadOnlySpan
}

// ExportSpans implements sdktrace.SpanExporter.
func (s *spans) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, spans...)
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (*spans) Shutdown(context.Context) error { return nil }

// print shows the traces with the most to tell: one that goes on in the second service, one with retries, one that
// ended in a dead letter, as far as there are any.
func (s *spans) print(w io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	byTrace := map[trace.TraceID][]sdktrace.ReadOnlySpan{}
	var order []trace.TraceID
	for _, span := range s.all {
		id := span.SpanContext().TraceID()
		if byTrace[id] == nil {
			order = append(order, id)
		}
		byTrace[id] = append(byTrace[id], span)
	}
	var chosen []trace.TraceID
	for _, interesting := range []func(sdktrace.ReadOnlySpan) bool{
		func(s sdktrace.ReadOnlySpan) bool { return s.Name() == "process "+changesTopic },
		func(s sdktrace.ReadOnlySpan) bool { return s.Name() == "process "+webhooksTopic && len(s.Events()) > 1 },
		func(s sdktrace.ReadOnlySpan) bool { return s.Name() == "send "+deadLettersTopic },
	} {
		i := slices.IndexFunc(order, func(id trace.TraceID) bool {
			return !slices.Contains(chosen, id) && slices.ContainsFunc(byTrace[id], interesting)
		})
		if i >= 0 {
			chosen = append(chosen, order[i])
		}
	}
	for _, id := range chosen {
		fmt.Fprintf(w, "trace %s\n", id)
		printTree(w, byTrace[id])
	}
	fmt.Fprintf(w, "%d of %d traces; set OTEL_EXPORTER_OTLP_ENDPOINT to see them all\n", len(chosen), len(order))
}

// printTree prints the spans of a trace below their parents.
func printTree(w io.Writer, spans []sdktrace.ReadOnlySpan) {
	slices.SortStableFunc(spans, func(a, b sdktrace.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	children := map[trace.SpanID][]sdktrace.ReadOnlySpan{}
	known := map[trace.SpanID]bool{}
	for _, s := range spans {
		known[s.SpanContext().SpanID()] = true
	}
	for _, s := range spans {
		parent := s.Parent().SpanID()
		if !known[parent] {
			parent = trace.SpanID{} // the producer's process, before a crash
		}
		children[parent] = append(children[parent], s)
	}
	var show func(parent trace.SpanID, depth int)
	show = func(parent trace.SpanID, depth int) {
		for _, s := range children[parent] {
			printSpan(w, s, strings.Repeat("  ", depth+1))
			show(s.SpanContext().SpanID(), depth+1)
		}
	}
	show(trace.SpanID{}, 0)
}

func printSpan(w io.Writer, s sdktrace.ReadOnlySpan, indent string) {
	service, _ := s.Resource().Set().Value("service.name")
	line := fmt.Sprintf("%s%s  [%s]  %v", indent, s.Name(), service.AsString(), s.EndTime().Sub(s.StartTime()).Round(10*time.Microsecond))
	for _, key := range []attribute.Key{"messaging.message.id", "headrace.outcome", "error.type"} {
		for _, a := range s.Attributes() {
			if a.Key == key {
				line += fmt.Sprintf("  %s=%s", key, a.Value.String())
			}
		}
	}
	fmt.Fprintln(w, line)
	for _, e := range s.Events() {
		line := fmt.Sprintf("%s  - %s", indent, e.Name)
		for _, a := range e.Attributes {
			line += fmt.Sprintf("  %s=%.80s", a.Key, a.Value.String())
		}
		fmt.Fprintln(w, line)
	}
}
