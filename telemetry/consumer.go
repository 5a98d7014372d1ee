package telemetry

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/poison"
)

// The most that a Consumer remembers ready-made; what exceeds it is computed each time.
const (
	maxTopics     = 256
	maxPartitions = 1024
)

// ConsumerConfig describes one consumer.
type ConsumerConfig struct {
	// Consumer is its stable name: the attribute messaging.consumer.group.name. Default: left out.
	Consumer string

	// Topic is what it reads: the destination. Default: the topic that Watermill's router put into
	// the message's context, so that one middleware serves all handlers of a router.
	Topic string

	// NoParent is Config.NoParent for this consumer alone, for a redrive topic say. It cannot undo it.
	NoParent bool

	// Classifier names its errors. Default: Config.Classifier.
	Classifier *classify.Classifier
}

// Consumer makes the spans and the metrics of one consumer. Its methods are safe for concurrent use and
// do not block.
type Consumer struct {
	t      *Telemetry
	config ConsumerConfig

	destination destination                 // if config.Topic is set
	others      cache[string, *destination] // by topic, if not
}

// destination is what a consumer says of one topic, ready-made.
type destination struct {
	process  string // names of spans
	attempt  string
	measures measures // of process.duration and consumed.messages
	own      measures // of headrace.*
	start    []attribute.KeyValue
	options  cache[int32, []trace.SpanStartOption] // by partition
}

// Consumer returns the telemetry of one consumer.
func (t *Telemetry) Consumer(cfg ConsumerConfig) *Consumer {
	if cfg.Classifier == nil {
		cfg.Classifier = t.config.Classifier
	}
	cfg.NoParent = cfg.NoParent || t.config.NoParent
	c := &Consumer{t: t, config: cfg}
	c.prepare(&c.destination, cfg.Topic)
	return c
}

func (c *Consumer) prepare(d *destination, topic string) {
	d.process, d.attempt = spanName(operationProcess, topic), spanName(operationAttempt, topic)
	d.measures.base = c.t.base(operationProcess, topic, c.config.Consumer)
	d.own.base = c.t.base("", topic, c.config.Consumer)
	d.start = append(slices.Clone(d.measures.base), keyOperationType.String(operationProcess))
}

func spanName(operation, topic string) string {
	if topic == "" {
		return operation
	}
	return operation + " " + topic
}

// to returns what is ready-made for the topic of the delivery in ctx.
func (c *Consumer) to(ctx context.Context) *destination {
	if c.config.Topic != "" {
		return &c.destination
	}
	topic := message.SubscribeTopicFromCtx(ctx)
	if topic == "" {
		return &c.destination
	}
	return c.others.get(topic, maxTopics, func() *destination {
		d := &destination{}
		c.prepare(d, topic)
		return d
	})
}

// startOptions returns the options of a process span: its kind and what a sampler may want to know.
func (c *Consumer) startOptions(d *destination, partition int32) []trace.SpanStartOption {
	if options, ok := d.options.peek(partition); ok {
		return options
	}
	return d.options.get(partition, maxPartitions, func() []trace.SpanStartOption {
		attrs := d.start
		if partition >= 0 {
			attrs = append(slices.Clone(attrs), keyPartition.String(strconv.Itoa(int(partition))))
		}
		options := []trace.SpanStartOption{
			trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithAttributes(attrs...),
		}
		if c.config.NoParent {
			options = append(options, trace.WithNewRoot())
		}
		return slices.Clip(options)
	})
}

// delivery is the telemetry of one delivery, and the context of its message while the stages inside run.
type delivery struct {
	context.Context // has the process span and the baggage

	dest      *destination
	span      trace.Span // nil if nothing traces
	recording bool
	attempts  int // runs that Attempt has seen

	// Of the dead letter, if there is one.
	errorType, errorText string
}

type deliveryKey struct{}

func (d *delivery) Value(k any) any {
	if k == (deliveryKey{}) {
		return d
	}
	return d.Context.Value(k)
}

// deliveryOf returns the delivery that ctx belongs to, or nil.
func deliveryOf(ctx context.Context) *delivery {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	return d
}

// Middleware makes the process span and the metrics of each delivery. Put it outside everything that
// retries, settles or dead-letters, so that there is one span for each delivery and its outcome is final.
//
// While the stages inside run, the message's context has the span and the message's baggage; afterwards
// it is what it was before. Returned messages whose context has no span get this one, so that their
// publishing belongs to the trace. Errors and panics pass through unchanged.
//
// An error that is returned when the message's own context has ended, or whose verdict is Stop, is a
// release and not a failure.
func (c *Consumer) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		tracing, metered := c.t.tracing(), c.metered(msg.Context())
		if !tracing && !metered {
			if !c.t.wire.carries(msg.Metadata) {
				return h(msg) // not from pass, whose frame is large on a fresh goroutine's stack
			}
			return c.pass(msg, h)
		}
		return c.process(msg, h, tracing, metered)
	}
}

// metered reports whether any metric of a delivery goes anywhere.
func (c *Consumer) metered(ctx context.Context) bool {
	m := &c.t.metrics
	return m.processDuration.Enabled(ctx) || m.consumed.Enabled(ctx) || m.queueDuration.Enabled(ctx) ||
		m.redeliveries.Enabled(ctx) || m.duplicates.Enabled(ctx)
}

// pass handles msg without telemetry of its own: a service that traces nothing still passes on the trace
// and the baggage that it is part of.
func (c *Consumer) pass(msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	before := msg.Context()
	ctx, _ := c.t.wire.extract(before, msg.Metadata)
	msg.SetContext(ctx)
	defer msg.SetContext(before)
	out, err := h(msg)
	carry(ctx, out)
	return out, err
}

func (c *Consumer) process(msg *message.Message, h message.HandlerFunc, tracing, metered bool) (out []*message.Message, err error) {
	before := msg.Context()
	f := flight.Ensure(msg)
	dest := c.to(before)

	var start time.Time
	if metered {
		start = time.Now()
		c.arrived(f, dest, start)
	}
	d := &delivery{dest: dest}
	d.Context, d.span = c.startSpan(msg, f, dest, tracing)
	d.recording = tracing && d.span.IsRecording()
	msg.SetContext(d)

	returned := false
	defer func() {
		msg.SetContext(before)
		c.finish(msg, f, d, before, start, metered, returned, err)
	}()
	out, err = h(msg)
	carry(d, out)
	returned = true
	return out, err
}

// arrived counts what is known before the handler runs.
func (c *Consumer) arrived(f *flight.Flight, dest *destination, now time.Time) {
	m := &c.t.metrics
	if f.Delivery.Count > 1 && m.redeliveries.Enabled(f) {
		m.redeliveries.Add(f, 1, dest.own.get("", "").add...)
	}
	if !f.Delivery.Time.IsZero() && m.queueDuration.Enabled(f) {
		// The broker's clock may be ahead of ours.
		queued := max(now.Sub(f.Delivery.Time), 0)
		m.queueDuration.Record(f, queued.Seconds(), dest.own.get("", "").record...)
	}
}

// startSpan starts the process span, or none if nothing traces.
func (c *Consumer) startSpan(msg *message.Message, f *flight.Flight, dest *destination, tracing bool) (context.Context, trace.Span) {
	ctx, created := c.t.wire.extract(msg.Context(), msg.Metadata)
	if !tracing {
		return ctx, nil
	}
	options := c.startOptions(dest, f.Delivery.Partition)
	if r := poison.RedriveOf(msg.Context()); r != nil {
		options = again(r, created, options)
	}
	if !created.IsValid() {
		return c.t.tracer.Start(ctx, dest.process, options...)
	}
	link := trace.Link{SpanContext: created}
	if c.config.NoParent {
		// A sampler can see the creation context only in the link.
		return c.t.tracer.Start(ctx, dest.process, append(options, trace.WithLinks(link))...)
	}
	ctx, span := c.t.tracer.Start(ctx, dest.process, options...)
	if span.IsRecording() {
		span.AddLink(link)
	}
	return ctx, span
}

// again is for a message that was kept somewhere: its span links to the one in which it failed. A redrive and a replay are new traces,
// since the old one has ended long ago.
func again(r *poison.Redrive, created trace.SpanContext, options []trace.SpanStartOption) []trace.SpanStartOption {
	text, isNew := r.Trace()
	failed := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{event.MetaTraceParent: text}))
	options = slices.Clone(options)
	if failed.IsValid() && !failed.Equal(created) {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: failed}))
	}
	if isNew {
		options = append(options, trace.WithNewRoot())
	}
	return options
}

// finish ends the span and records the metrics. returned is false if the handler panicked or ended its
// goroutine.
func (c *Consumer) finish(msg *message.Message, f *flight.Flight, d *delivery,
	before context.Context, start time.Time, metered, returned bool, err error,
) {
	outcome, errorType := c.outcome(f, d, before, returned, err)
	if d.recording {
		c.describe(msg, f, d)
		d.span.SetAttributes(keyOutcome.String(outcome))
		if errorType != "" {
			text := d.errorText
			if err != nil {
				text = c.t.errorText(err)
			}
			d.span.SetAttributes(keyErrorType.String(errorType))
			d.span.SetStatus(codes.Error, text)
		}
	}
	if d.span != nil {
		d.span.End()
	}
	if !metered {
		return
	}
	m := &c.t.metrics
	options := d.dest.measures.get(outcome, errorType)
	m.processDuration.Record(d, time.Since(start).Seconds(), options.record...)
	m.consumed.Add(d, 1, options.add...)
	if outcome == flight.Duplicate.String() {
		m.duplicates.Add(d, 1, d.dest.own.get("", "").add...)
	}
}

// outcome names how the delivery ended. The error type is "" unless it failed.
func (c *Consumer) outcome(f *flight.Flight, d *delivery, before context.Context, returned bool, err error) (outcome, errorType string) {
	if !returned {
		return outcomeFailed, errorTypePanic
	}
	settlement, receipt := f.Settlement(), f.Receipt()
	// Acked on a receipt is done, whatever is returned: the error of a drop, say.
	if err == nil || settlement == flight.Acked && receipt != flight.NoReceipt {
		switch {
		case receipt == flight.DeadLettered:
			if d.errorType == "" {
				return receipt.String(), errorTypeOther
			}
			return receipt.String(), d.errorType
		case settlement == flight.Released:
			return outcomeReleased, ""
		case settlement == flight.Nacked:
			return outcomeFailed, errorTypeOther
		case receipt == flight.NoReceipt:
			return flight.Handled.String(), ""
		}
		return receipt.String(), ""
	}
	// A nack ends the context of some adapters' messages, so the context tells of a release only as
	// long as nothing was settled.
	if settlement == flight.Delayed {
		return outcomeDelayed, ""
	}
	if settlement == flight.Released || settlement == flight.Unsettled && before.Err() != nil {
		return outcomeReleased, ""
	}
	result := c.config.Classifier.Classify(err)
	if result.Verdict == classify.VerdictStop {
		return outcomeReleased, ""
	}
	return outcomeFailed, result.ErrorType
}

// errorType names err as the conventions do.
func (c *Consumer) errorType(err error) string {
	return c.config.Classifier.Classify(err).ErrorType
}

// describe sets what only a recorded span needs.
func (c *Consumer) describe(msg *message.Message, f *flight.Flight, d *delivery) {
	attrs := make([]attribute.KeyValue, 0, 16)
	attrs = appendMessage(attrs, msg)
	if f.CorrelationID != "" {
		attrs = append(attrs, keyConversationID.String(f.CorrelationID))
	} else if id := correlationID(msg.Metadata); id != "" {
		attrs = append(attrs, keyConversationID.String(id))
	}
	if f.Delivery.Count > 1 {
		attrs = append(attrs, keyDeliveryCount.Int(f.Delivery.Count))
	}
	if attempts := max(f.Attempt, d.attempts); attempts > 1 {
		attrs = append(attrs, keyAttempts.Int(attempts))
	}
	if c.t.config.System == systemKafka {
		attrs = c.t.appendKafka(attrs, msg, f)
	}
	d.span.SetAttributes(attrs...)
}

// appendMessage appends what identifies msg on both sides of a broker.
func appendMessage(attrs []attribute.KeyValue, msg *message.Message) []attribute.KeyValue {
	md := msg.Metadata
	id := msg.UUID
	if id == "" {
		id = md[event.MetaID]
	}
	if id != "" {
		attrs = append(attrs, keyMessageID.String(id))
	}
	attrs = append(attrs, keyBodySize.Int(len(msg.Payload)))
	for _, a := range [...]struct {
		key  attribute.Key
		meta string
	}{
		{keyCloudEventID, event.MetaID},
		{keyCloudEventSource, event.MetaSource},
		{keyCloudEventType, event.MetaType},
	} {
		if v := md[a.meta]; v != "" {
			attrs = append(attrs, a.key.String(v))
		}
	}
	return attrs
}

func correlationID(md message.Metadata) string {
	if id := md[event.MetaCorrelationID]; id != "" {
		return id
	}
	return md[event.MetaWatermillCorrelationID]
}

// carry puts ctx's span and baggage into the contexts of messages that have no span, so that publishing
// them belongs to the trace.
func carry(ctx context.Context, messages []*message.Message) {
	if len(messages) == 0 {
		return
	}
	span := trace.SpanFromContext(ctx)
	traced := span.SpanContext().IsValid()
	bag := baggage.FromContext(ctx)
	for _, m := range messages {
		if m == nil {
			continue
		}
		if traced && !trace.SpanContextFromContext(m.Context()).IsValid() {
			m.SetContext(trace.ContextWithSpan(m.Context(), span))
		}
		if bag.Len() > 0 && baggage.FromContext(m.Context()).Len() == 0 {
			m.SetContext(baggage.ContextWithBaggage(m.Context(), bag))
		}
	}
}
