package telemetry

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Attempt shows the runs of the handler in the process span, as Config.Attempts says. Put it directly
// inside the stage that retries. A run that succeeds at once adds nothing, nor does any run when the span
// is not recording, or without [Consumer.Middleware] outside.
//
// With AttemptSpans the handler's context has the run's own span from the second run on; the span of
// a failed first run is made afterwards, and what the handler traced in it is a child of the process span.
func (c *Consumer) Attempt(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if c.t.tracing() { // if not, no span wants to know
			if d := deliveryOf(msg.Context()); d != nil {
				d.attempts++
				if d.recording && c.t.config.Attempts != AttemptsOff {
					return c.attempt(msg, h, d)
				}
			}
		}
		out, err := h(msg)
		if len(out) > 0 {
			carry(msg.Context(), out)
		}
		return out, err
	}
}

func (c *Consumer) attempt(msg *message.Message, h message.HandlerFunc, d *delivery) (out []*message.Message, err error) {
	before, start := msg.Context(), time.Now()
	var span trace.Span // of this run, if it has its own from the start
	ctx := before
	if c.t.config.Attempts == AttemptSpans && d.attempts > 1 {
		ctx, span = c.t.tracer.Start(before, d.dest.attempt, trace.WithAttributes(keyAttempt.Int(d.attempts)))
		msg.SetContext(ctx)
	}
	returned := false
	defer func() {
		msg.SetContext(before)
		errorType := ""
		switch {
		case !returned:
			errorType = errorTypePanic
		case err != nil && before.Err() == nil:
			errorType = c.errorType(err)
		}
		c.attempted(d, span, start, errorType, err)
	}()
	out, err = h(msg)
	carry(ctx, out)
	returned = true
	return out, err
}

// attempted records one run. Without an error type it did not fail: it succeeded or was given up
// because the message's context ended.
func (c *Consumer) attempted(d *delivery, span trace.Span, start time.Time, errorType string, err error) {
	if errorType == "" {
		if span != nil {
			span.End()
		}
		return
	}
	if c.t.config.Attempts == AttemptEvents {
		d.span.AddEvent(eventAttemptFailed, trace.WithAttributes(
			keyAttempt.Int(d.attempts),
			keyAttemptDuration.Float64(time.Since(start).Seconds()),
			keyErrorType.String(errorType),
		))
		return
	}
	if span == nil {
		_, span = c.t.tracer.Start(d.Context, d.dest.attempt, trace.WithTimestamp(start),
			trace.WithAttributes(keyAttempt.Int(d.attempts)))
	}
	span.SetAttributes(keyErrorType.String(errorType))
	span.SetStatus(codes.Error, c.t.errorText(err))
	span.End()
}
