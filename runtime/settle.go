package runtime

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
)

// settle is the only place that acks, and only on a receipt (invariants I1 and I2). It is outside the
// dead letters and inside the intake, which frees the lane when it returns.
func (c *Consumer) settle(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		f := flight.From(ctx)
		_, err := h(msg)

		verdict := verdictOf(c, err)
		if verdict == classify.VerdictDrop {
			flight.Give(ctx, flight.Dropped)
			c.runtime.config.Logger.LogAttrs(ctx, levelDebug, "message dropped", c.attrs(f, err)...)
		}
		delayed, isDelayed := errors.AsType[*middleware.DelayedError](err)
		if f.Delays == flight.DelaysInOrder || f.Delays == flight.DelaysNowhere {
			isDelayed = false // the broker would let the later ones of its key go first
		}
		switch {
		case verdict <= classify.VerdictDrop && f.Receipt() != flight.NoReceipt:
			f.Ack()
		case ctx.Err() != nil, f.IsDraining() && !isDelayed:
			// Shutdown, a revoked partition or the end of a hold: not a failure, and no nack, which some adapters answer
			// with a resend loop (fault S5), unless a hold ended and nothing else tells the adapter. A stage that a drain broke off marks
			// what it had in hand by classify.Stop, and what was decided about that before is inside of the mark.
			f.GiveBack()
		case isDelayed:
			f.Delay(delayed.After)
		case verdict == classify.VerdictStop:
			c.Pause(askedToStop) // the next of its key would overtake it: the run ends a moment later
			f.Release()
			c.runtime.stop(fmt.Errorf("consumer %s was asked to stop by the handling of %s: %w", c.config.Name, f.ID, err))
		default:
			// No stage lets this happen; if one does, the message must come again.
			c.runtime.config.Logger.LogAttrs(ctx, levelError, "message left without an outcome; it will be delivered again", c.attrs(f, err)...)
			f.Nack()
		}
		c.counts.settled(f)
		if f.HasAdded() {
			c.runtime.Wake()
		}
		return nil, err
	}
}

// askedToStop is why a consumer is paused whose handler has asked for the end of the run.
const askedToStop = "a handler asked to stop"

// verdictOf tells what was decided about err: by the stage that gave up, or else by the classifier.
func verdictOf(c *Consumer, err error) classify.Verdict {
	if err == nil {
		return classify.VerdictNone
	}
	if gaveUp, ok := errors.AsType[*middleware.GaveUpError](err); ok {
		return gaveUp.Verdict
	}
	if _, ok := errors.AsType[*middleware.DelayedError](err); ok {
		return classify.VerdictRetryAfter // Retry's classifier may be another one
	}
	return c.config.Classifier.Classify(err).Verdict
}
