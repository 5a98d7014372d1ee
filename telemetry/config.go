package telemetry

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/headrace-go/headrace/classify"
)

// Config says where telemetry goes. Its zero value is useful: otel's globals.
type Config struct {
	// TracerProvider makes the spans. Default: otel's global one, also if it is set only after New.
	TracerProvider trace.TracerProvider

	// MeterProvider makes the metrics. Default: otel's global one, also if it is set only after New.
	MeterProvider metric.MeterProvider

	// Propagator reads and writes trace context and baggage. Default: otel's global one if it was set
	// before New, else W3C trace context and baggage, so that a forgotten global does not cut traces.
	// W3C is read whatever is set here.
	Propagator propagation.TextMapPropagator

	// System is the attribute messaging.system.name: "kafka", "nats", "memory", ...
	// Default "watermill".
	System string

	// NoParent makes each process span the root of a new trace that is only linked to the message's
	// creation context. Default: linked, and child of it.
	NoParent bool

	// Attempts says how the runs of a handler show in the process span. Default AttemptEvents.
	Attempts AttemptDetail

	// Classifier names errors (error.type). Default: classify's own rules.
	Classifier *classify.Classifier

	// OmitErrorText leaves the text of errors out of span statuses, for services whose errors hold
	// personal data. Default: at most 256 bytes of it.
	OmitErrorText bool
}

// AttemptDetail says how the runs of a handler show in the process span. A run that succeeds at the
// first try never adds anything.
type AttemptDetail uint8

// The details.
const (
	AttemptEvents AttemptDetail = iota // an event for each failed run and for each delay
	AttemptSpans                       // a child span for each run, the first one only if it failed
	AttemptsOff                        // the number of runs only
)

// Telemetry makes the spans and the metrics of one program. It is safe for concurrent use.
type Telemetry struct {
	config      Config
	dup         bool // the old names as well
	tracer      trace.Tracer
	silent      bool                 // tracer is the no-op one
	unset       trace.TracerProvider // otel's placeholder, if tracer comes from it: silent until it is replaced
	wire        wire
	meter       metric.Meter
	metrics     metrics
	observables observables
}

// New returns a Telemetry. It reads OTEL_SEMCONV_STABILITY_OPT_IN: with messaging/dup in it, attributes
// have their former names beside their present ones. Errors name the field and the value.
func New(cfg Config) (*Telemetry, error) {
	if cfg.Attempts > AttemptsOff {
		return nil, fmt.Errorf("telemetry.Config.Attempts is %d: want AttemptEvents, AttemptSpans or AttemptsOff", cfg.Attempts)
	}
	if cfg.System == "" {
		cfg.System = systemDefault
	}
	t := &Telemetry{config: cfg, dup: optedIn(os.Getenv(optInVariable))}

	provider := cfg.TracerProvider
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	t.tracer = provider.Tracer(scopeName, trace.WithSchemaURL(schemaURL))
	switch {
	case isNoop(provider):
		t.silent = true
	case isPlaceholder(provider):
		t.unset = provider
	}

	propagator := cfg.Propagator
	if propagator == nil {
		propagator = otel.GetTextMapPropagator()
	}
	t.wire = newWire(propagator)

	meters := cfg.MeterProvider
	if meters == nil {
		meters = otel.GetMeterProvider()
	}
	t.meter = meters.Meter(scopeName, metric.WithSchemaURL(schemaURL))
	var errWritten, errRead error
	t.metrics, errWritten = newMetrics(t.meter)
	t.observables, errRead = newObservables(t.meter)
	if err := errors.Join(errWritten, errRead); err != nil {
		return nil, err
	}
	return t, nil
}

// optedIn reports whether list asks for both names.
func optedIn(list string) bool {
	for item := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(item) == optInDup {
			return true
		}
	}
	return false
}

func isNoop(p trace.TracerProvider) bool {
	_, ok := p.(tracenoop.TracerProvider)
	return ok
}

// isPlaceholder reports whether p is what otel.GetTracerProvider returns before a provider is set. Its
// type has no name that we could use; if it ever moves, spans are still right and cost a little more.
func isPlaceholder(p trace.TracerProvider) bool {
	t := reflect.TypeOf(p)
	return t.Kind() == reflect.Pointer && t.Elem().PkgPath() == "go.opentelemetry.io/otel/internal/global"
}

// tracing reports whether spans can go anywhere.
func (t *Telemetry) tracing() bool {
	if t.unset != nil {
		return otel.GetTracerProvider() != t.unset
	}
	return !t.silent
}

// base returns the attributes that all spans and metrics of a destination have. group is "" for
// producers.
func (t *Telemetry) base(operation, destination, group string) []attribute.KeyValue {
	attrs := []attribute.KeyValue{keySystem.String(t.config.System)}
	if t.dup {
		attrs = append(attrs, oldSystem.String(t.config.System))
	}
	if operation != "" {
		attrs = append(attrs, keyOperationName.String(operation))
	}
	if destination != "" {
		attrs = append(attrs, keyDestination.String(destination))
	}
	if group != "" {
		attrs = append(attrs, keyConsumerGroup.String(group))
	}
	return attrs
}

// metrics are the instruments that are written to; observables.go has those that are read.
type metrics struct {
	processDuration   metric.Float64Histogram
	consumed          metric.Int64Counter
	operationDuration metric.Float64Histogram
	sent              metric.Int64Counter
	queueDuration     metric.Float64Histogram
	retryDelay        metric.Float64Histogram
	redeliveries      metric.Int64Counter
	duplicates        metric.Int64Counter
	deadLetters       metric.Int64Counter
	pauses            metric.Int64Counter
	outboxLatency     metric.Float64Histogram
}

func newMetrics(meter metric.Meter) (metrics, error) {
	var errs []error
	histogram := func(i instrument, buckets []float64) metric.Float64Histogram {
		h, err := meter.Float64Histogram(i.name, metric.WithUnit(i.unit), metric.WithDescription(i.description),
			metric.WithExplicitBucketBoundaries(buckets...))
		if err != nil {
			errs = append(errs, fmt.Errorf("create metric %s: %w", i.name, err))
			return metricnoop.Float64Histogram{}
		}
		return h
	}
	counter := func(i instrument) metric.Int64Counter {
		c, err := meter.Int64Counter(i.name, metric.WithUnit(i.unit), metric.WithDescription(i.description))
		if err != nil {
			errs = append(errs, fmt.Errorf("create metric %s: %w", i.name, err))
			return metricnoop.Int64Counter{}
		}
		return c
	}
	m := metrics{
		processDuration:   histogram(processDuration, durationBuckets),
		consumed:          counter(consumedMessages),
		operationDuration: histogram(operationDuration, durationBuckets),
		sent:              counter(sentMessages),
		queueDuration:     histogram(queueDuration, waitBuckets),
		retryDelay:        histogram(retryDelay, waitBuckets),
		redeliveries:      counter(redeliveries),
		duplicates:        counter(duplicates),
		deadLetters:       counter(deadLetters),
		pauses:            counter(pauses),
		outboxLatency:     histogram(outboxLatency, waitBuckets),
	}
	return m, errors.Join(errs...)
}
