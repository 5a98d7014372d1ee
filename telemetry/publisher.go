package telemetry

import (
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// maxLinks bounds the links of a send span; it is also the SDK's own default.
const maxLinks = 128

// Publisher returns pub with a send span and metrics for each call of Publish, and with the trace context
// and the baggage written into the messages' metadata.
//
// The send span is a child of the span in the first message's context, and the creation context of every
// message that has none; a message whose own context belongs to another span keeps that one as
// its creation context. A creation context in the metadata (an outbox row's, a dead letter's) is never
// overwritten: the send span is linked to it, and for a single message without a span in its context
// also its child.
//
// Publish writes to the messages' metadata, as Watermill allows to every publisher: do not publish one
// message concurrently. It adds propagation keys only, and sets no message's context. With nothing
// traced it still passes on a trace context or baggage that it finds in a message's context.
//
// Close closes pub.
func (t *Telemetry) Publisher(pub message.Publisher) message.Publisher {
	return &publisher{Publisher: pub, t: t}
}

type publisher struct {
	message.Publisher
	t      *Telemetry
	topics cache[string, *sending]
}

// sending is what a publisher says of one topic, ready-made.
type sending struct {
	name     string
	producer []trace.SpanStartOption // for a span whose context is injected
	client   []trace.SpanStartOption // for one whose context is not
	duration measures
	sent     measures
}

func (p *publisher) to(topic string) *sending {
	if s, ok := p.topics.peek(topic); ok {
		return s
	}
	return p.topics.get(topic, maxTopics, func() *sending {
		s := &sending{name: spanName(operationSend, topic)}
		s.sent.base = p.t.base(operationSend, topic, "")
		s.duration.base = append(slices.Clone(s.sent.base), keyOperationType.String(operationSend))
		attrs := trace.WithAttributes(s.duration.base...)
		s.producer = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindProducer), attrs}
		s.client = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), attrs}
		return s
	})
}

// Publish publishes messages to topic.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return p.Publisher.Publish(topic)
	}
	m := &p.t.metrics
	ctx := messages[0].Context()
	tracing, metered := p.t.tracing(), m.sent.Enabled(ctx) || m.operationDuration.Enabled(ctx)
	if !tracing {
		for _, msg := range messages {
			p.t.injectInto(msg.Context(), msg)
		}
	}
	if !tracing && !metered {
		return p.Publisher.Publish(topic, messages...)
	}
	return p.publish(ctx, topic, messages, tracing, metered)
}

func (p *publisher) publish(ctx context.Context, topic string, messages []*message.Message, tracing, metered bool) (err error) {
	s := p.to(topic)
	var span trace.Span
	if tracing {
		ctx, span = p.startSpan(ctx, s, messages)
	}
	var start time.Time
	if metered {
		start = time.Now()
	}
	returned := false
	defer func() {
		p.finish(ctx, s, span, len(messages), start, metered, returned, err)
	}()
	err = p.Publisher.Publish(topic, messages...)
	returned = true
	return err
}

// startSpan starts the send span and makes it the creation context of the messages that have none.
func (p *publisher) startSpan(ctx context.Context, s *sending, messages []*message.Message) (context.Context, trace.Span) {
	ambient := trace.SpanContextFromContext(ctx)
	var first trace.SpanContext // the first creation context that is there
	var created []bool          // by message; nil: none has one
	options := s.producer
	left := len(messages)
	for i, msg := range messages {
		sc := p.t.wire.created(msg.Metadata)
		if !sc.IsValid() {
			continue
		}
		if created == nil {
			created, first = make([]bool, len(messages)), sc
		}
		created[i] = true
		left--
	}
	if left == 0 {
		options = s.client
		if len(messages) == 1 && !ambient.IsValid() && !p.t.config.NoParent {
			ctx = trace.ContextWithRemoteSpanContext(ctx, first)
		}
	}
	ctx, span := p.t.tracer.Start(ctx, s.name, options...)
	for i, msg := range messages {
		switch {
		case created != nil && created[i]:
			p.t.injectInto(msg.Context(), msg) // baggage, and the user's own form
		case i == 0:
			p.t.injectOver(ctx, msg)
		case another(msg.Context(), ambient):
			p.t.injectOver(msg.Context(), msg)
		default:
			p.t.injectOver(trace.ContextWithSpan(msg.Context(), span), msg)
		}
	}
	if span.IsRecording() {
		p.describe(span, messages, created)
	}
	return ctx, span
}

// another reports whether ctx belongs to another span than ambient.
func another(ctx context.Context, ambient trace.SpanContext) bool {
	sc := trace.SpanContextFromContext(ctx)
	return sc.IsValid() && (sc.SpanID() != ambient.SpanID() || sc.TraceID() != ambient.TraceID())
}

// describe sets what only a recorded span needs.
func (p *publisher) describe(span trace.Span, messages []*message.Message, created []bool) {
	links := 0
	for i := range created {
		if created[i] && links < maxLinks {
			span.AddLink(trace.Link{SpanContext: p.t.wire.created(messages[i].Metadata)})
			links++
		}
	}
	if len(messages) > 1 {
		span.SetAttributes(keyBatchCount.Int(len(messages)))
		return
	}
	msg := messages[0]
	attrs := appendMessage(make([]attribute.KeyValue, 0, 8), msg)
	if id := correlationID(msg.Metadata); id != "" {
		attrs = append(attrs, keyConversationID.String(id))
	}
	span.SetAttributes(attrs...)
}

// finish ends the span and records the metrics. returned is false if the publisher panicked.
func (p *publisher) finish(ctx context.Context, s *sending, span trace.Span, count int, start time.Time, metered, returned bool, err error) {
	errorType := ""
	switch {
	case !returned:
		errorType = errorTypePanic
	case err != nil:
		errorType = p.t.config.Classifier.Classify(err).ErrorType
	}
	if span != nil {
		if errorType != "" && span.IsRecording() {
			span.SetAttributes(keyErrorType.String(errorType))
			span.SetStatus(codes.Error, p.t.errorText(err))
		}
		span.End()
	}
	if metered {
		m := &p.t.metrics
		m.operationDuration.Record(ctx, time.Since(start).Seconds(), s.duration.get("", errorType).record...)
		m.sent.Add(ctx, int64(count), s.sent.get("", errorType).add...)
	}
}
