package telemetry

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// maxErrorText is the most of an error's text that a span's status has, in bytes.
const maxErrorText = 256

// Retried records a delay before a retry: call it with the delay that is slept and the error type of the
// run that failed. ctx is the delivery's.
func (c *Consumer) Retried(ctx context.Context, delay time.Duration, errorType string) {
	d := deliveryOf(ctx)
	if d != nil && d.recording && c.t.config.Attempts != AttemptsOff {
		d.span.AddEvent(eventRetry, trace.WithAttributes(keyRetryDelay.Float64(delay.Seconds())))
	}
	if c.t.metrics.retryDelay.Enabled(ctx) {
		options := c.ownOf(ctx, d).get("", errorType)
		c.t.metrics.retryDelay.Record(ctx, delay.Seconds(), options.record...)
	}
}

// DeadLettered records that the dead letter of the delivery in ctx is confirmed stored, and why it was
// written: the kind of the error and its text. The process span gets them as its own: the stages outside
// see no error.
func (c *Consumer) DeadLettered(ctx context.Context, errorType, text string) {
	d := deliveryOf(ctx)
	if d != nil {
		d.errorType = errorType
		if d.recording {
			d.errorText = c.t.boundText(text)
		}
	}
	if c.t.metrics.deadLetters.Enabled(ctx) {
		options := c.ownOf(ctx, d).get("", errorType)
		c.t.metrics.deadLetters.Add(ctx, 1, options.add...)
	}
}

// Paused counts a pause of the intake by the breaker. cause is one of a few words.
func (c *Consumer) Paused(ctx context.Context, cause string) {
	attrs := append(slices.Clone(c.destination.own.base), keyPauseCause.String(cause))
	c.t.metrics.pauses.Add(ctx, 1, metric.WithAttributeSet(attribute.NewSet(attrs...)))
}

// ownOf returns the measures of headrace.* for the delivery.
func (c *Consumer) ownOf(ctx context.Context, d *delivery) *measures {
	if d != nil {
		return &d.dest.own
	}
	return &c.to(ctx).own
}

// errorText returns what a span's status says of err: bounded, valid UTF-8, "" if it is not wanted or
// err's own method panics.
func (t *Telemetry) errorText(err error) (text string) {
	if err == nil {
		return ""
	}
	defer func() {
		if recover() != nil {
			text = ""
		}
	}()
	return t.boundText(err.Error())
}

func (t *Telemetry) boundText(text string) string {
	if t.config.OmitErrorText {
		return ""
	}
	return strings.ToValidUTF8(text[:min(len(text), maxErrorText)], "")
}
