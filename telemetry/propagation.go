package telemetry

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/event"
)

// The CloudEvents extension "distributed tracing": the trace that the event started in, which is not
// the hop that the message came by.
const (
	metaStartTraceParent = "ce_traceparent"
	metaStartTraceState  = "ce_tracestate"
)

// Inject writes the trace context and the baggage of ctx into metadata as W3C traceparent, tracestate
// and baggage: it makes ctx's span the creation context of the message. Use it where a message is made
// now and published later, such as an outbox row.
//
// A creation context that metadata has already is not overwritten, nor is its baggage. Without a span
// and baggage in ctx it does nothing. metadata must not be nil.
func Inject(ctx context.Context, metadata message.Metadata) {
	w3c.inject(ctx, metadata)
}

// Extract returns ctx with the remote span and the baggage that metadata carries as W3C traceparent,
// tracestate and baggage. Without a valid traceparent it takes that of the CloudEvents extension
// (ce_traceparent), where the event began. Without any of them it returns ctx itself, at the cost of
// three look-ups. What is malformed is left out; it is never an error.
func Extract(ctx context.Context, metadata message.Metadata) context.Context {
	ctx, _ = w3c.extract(ctx, metadata)
	return ctx
}

// wire is the form that trace context and baggage have in metadata: W3C, and the user's own in its
// place where they chose one. W3C is read in any case: the rows of the outbox have it.
type wire struct {
	custom propagation.TextMapPropagator
	fields []string // of custom
}

var w3c wire

// newWire takes any propagator; nil, and one without fields as the unset global is, mean W3C.
func newWire(p propagation.TextMapPropagator) wire {
	if p == nil {
		return w3c
	}
	fields := p.Fields()
	if len(fields) == 0 {
		return w3c
	}
	return wire{custom: p, fields: fields}
}

// carries reports whether metadata has anything that extract could read.
func (w wire) carries(metadata message.Metadata) bool {
	if metadata[event.MetaTraceParent] != "" || metadata[event.MetaBaggage] != "" ||
		metadata[metaStartTraceParent] != "" {
		return true
	}
	return w.carriesCustom(metadata)
}

func (w wire) carriesCustom(metadata message.Metadata) bool {
	for _, f := range w.fields {
		if f != event.MetaBaggage && metadata[f] != "" {
			return true
		}
	}
	return false
}

// extract returns ctx with what metadata carries, and the creation context, invalid if there is none.
func (w wire) extract(ctx context.Context, metadata message.Metadata) (context.Context, trace.SpanContext) {
	if !w.carries(metadata) {
		return ctx, trace.SpanContext{}
	}
	carrier := propagation.MapCarrier(metadata)
	if w.custom == nil {
		ctx = propagation.Baggage{}.Extract(ctx, carrier)
	} else {
		ctx = w.custom.Extract(ctx, carrier)
		if w.carriesCustom(metadata) {
			if sc := trace.SpanContextFromContext(ctx); sc.IsRemote() {
				return ctx, sc
			}
		}
	}
	if metadata[event.MetaTraceParent] != "" {
		next := propagation.TraceContext{}.Extract(ctx, carrier)
		if sc := trace.SpanContextFromContext(next); sc.IsRemote() {
			return next, sc
		}
	}
	if start := metadata[metaStartTraceParent]; start != "" {
		next := propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{
			event.MetaTraceParent: start,
			event.MetaTraceState:  metadata[metaStartTraceState],
		})
		if sc := trace.SpanContextFromContext(next); sc.IsRemote() {
			return next, sc
		}
	}
	return ctx, trace.SpanContext{}
}

// created returns the context that the message was created in by an earlier inject, invalid if none was.
// The event's own start does not count: the hop still has to be written.
func (w wire) created(metadata message.Metadata) trace.SpanContext {
	carrier := propagation.MapCarrier(metadata)
	if w.custom != nil && w.carriesCustom(metadata) {
		if sc := trace.SpanContextFromContext(w.custom.Extract(context.Background(), carrier)); sc.IsValid() {
			return sc
		}
	}
	if metadata[event.MetaTraceParent] == "" {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}

// inject writes ctx's span and baggage, except over those that are there.
func (w wire) inject(ctx context.Context, metadata message.Metadata) {
	carrier := propagation.MapCarrier(metadata)
	if w.custom == nil {
		if metadata[event.MetaTraceParent] == "" {
			// A tracestate without its traceparent belongs to nothing.
			delete(metadata, event.MetaTraceState)
			propagation.TraceContext{}.Inject(ctx, carrier)
		}
		if metadata[event.MetaBaggage] == "" {
			propagation.Baggage{}.Inject(ctx, carrier)
		}
		return
	}
	if w.carriesCustom(metadata) {
		return
	}
	if sc := w.created(metadata); sc.IsValid() {
		// Created with W3C by an outbox row: the same context in the user's form.
		ctx = trace.ContextWithRemoteSpanContext(ctx, sc)
	}
	before := metadata[event.MetaBaggage]
	w.custom.Inject(ctx, carrier)
	if before != "" {
		metadata[event.MetaBaggage] = before
	}
}

// injectInto writes ctx's span and baggage into msg, except over those that are there.
func (t *Telemetry) injectInto(ctx context.Context, msg *message.Message) {
	if msg.Metadata == nil {
		if !trace.SpanContextFromContext(ctx).IsValid() && baggage.FromContext(ctx).Len() == 0 {
			return
		}
		msg.Metadata = message.Metadata{}
	}
	t.wire.inject(ctx, msg.Metadata)
}

// injectOver is injectInto for a message without a valid creation context: what is invalid goes.
func (t *Telemetry) injectOver(ctx context.Context, msg *message.Message) {
	delete(msg.Metadata, event.MetaTraceParent)
	for _, f := range t.wire.fields {
		if f != event.MetaBaggage {
			delete(msg.Metadata, f)
		}
	}
	t.injectInto(ctx, msg)
}
