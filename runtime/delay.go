package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
)

const (
	// delayTimeout bounds one try to store a message that is to come again later.
	delayTimeout = 10 * time.Second

	// firstDelayPause is the pause after the first try that failed; it doubles up to maxDelayPause.
	firstDelayPause = 100 * time.Millisecond
	maxDelayPause   = 30 * time.Second
)

// delays is the stage that keeps messages whose error asked for a delay beyond MaxHold:
//
//   - with its key, in the order of the key, where the consumer parks;
//   - else by the broker, which settle tells, where it can delay one message;
//   - else in the outbox of a relay of this runtime, which publishes it to the consumer's redrive topic when it is due;
//   - else nowhere: the lane is held.
//
// It is inside of the dead letters and outside of the retries. A message is acked when the transaction that keeps it is
// committed. A crash in between delivers it again, and its copy later: it is handled at least once, and with HandleTx takes effect once.
type delays struct {
	*Consumer
	outbox         outbox.Delayer // nil: none
	maxHeaderBytes int
}

// newDelays finds out where the consumer's delays can be kept.
func (c *Consumer) newDelays() *delays {
	d := &delays{Consumer: c, maxHeaderBytes: c.runtime.config.Broker.Capabilities().MaxHeaderBytes}
	if !c.takesRedrives() {
		return d
	}
	for _, l := range c.runtime.relays {
		if to, ok := l.source.(outbox.Delayer); ok {
			d.outbox = to
			break
		}
	}
	return d
}

// stage is the middleware. came says that the subscription brings messages that were kept before.
func (d *delays) stage(came bool) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			ctx := msg.Context()
			f := flight.From(ctx)
			f.Delays = d.by(f)
			if came {
				f.Earlier = earlier(ctx)
				if r := poison.RedriveOf(ctx); r != nil {
					f.Deaths = r.Record.Deaths
				}
			}
			out, err := h(msg)
			if err == nil {
				return out, nil
			}
			return nil, d.failed(ctx, f, msg, h, err)
		}
	}
}

// by tells who keeps the delays of a message.
func (d *delays) by(f *flight.Flight) flight.Delays {
	switch {
	case d.parker != nil && f.Key != "" && f.ID != "":
		return flight.DelaysInOrder
	case d.outbox != nil:
		return flight.DelaysOutside
	}
	return flight.DelaysByBroker
}

// earlier is what a delayed message had come to before.
func earlier(ctx context.Context) *flight.Earlier {
	r := poison.RedriveOf(ctx)
	if r == nil {
		return nil
	}
	attempts, first := r.Earlier()
	if attempts == 0 {
		return nil
	}
	return &flight.Earlier{Attempts: attempts, FirstFailure: first}
}

// failed keeps the message if err asks for a delay. It returns nil when it is kept.
func (d *delays) failed(ctx context.Context, f *flight.Flight, msg *message.Message, h message.HandlerFunc, err error) error {
	for {
		asked, ok := errors.AsType[*middleware.DelayedError](err)
		switch {
		case !ok || ctx.Err() != nil:
			return err
		case f.Delays != flight.DelaysInOrder && f.BrokerDelays():
			return err // settle tells the broker
		}
		due := asked.LastFailure.Add(asked.After)
		why := d.keep(ctx, f, asked, due)
		switch {
		case why == nil:
			d.runtime.config.Logger.LogAttrs(ctx, levelDebug, "message delayed", append(d.attrs(f, err), slog.Time("until", due))...)
			flight.Give(ctx, flight.Deferred)
			return nil
		case d.overflows(why):
			return &middleware.GaveUpError{
				Verdict: classify.VerdictRetryAfter, ErrorType: asked.ErrorType, Attempts: asked.Attempts,
				FirstFailure: asked.FirstFailure, LastFailure: asked.LastFailure, Err: fmt.Errorf("%w: %w", why, asked.Err),
			}
		case !errors.Is(why, outbox.ErrInvalid):
			return classify.Stop(fmt.Errorf("%w; it was to be delayed for: %w", why, err))
		}
		// What the outbox cannot hold is held in the lane.
		d.runtime.config.Logger.LogAttrs(ctx, slog.LevelWarn, "message cannot be delayed: its key is held", append(d.attrs(f, why), slog.Time("until", due))...)
		f.Delays, f.Earlier = flight.DelaysNowhere, &flight.Earlier{Attempts: asked.Attempts, FirstFailure: asked.FirstFailure}
		if !f.Sleep(ctx, time.Until(due)) {
			return classify.Stop(err)
		}
		msg.SetContext(ctx)
		f.Restore(msg)
		if _, err = h(msg); err == nil {
			return nil
		}
	}
}

// keep stores the message until due. It tries until that is done, the message's context has ended or a drain began, or it cannot
// be done. Meanwhile the lane is held.
func (d *delays) keep(ctx context.Context, f *flight.Flight, asked *middleware.DelayedError, due time.Time) error {
	record, _ := poison.Delayed(ctx, asked)
	for pause := firstDelayPause; ; pause = min(2*pause, maxDelayPause) {
		err := d.try(ctx, f, record, max(time.Until(due), 0))
		switch {
		case err == nil, errors.Is(err, outbox.ErrInvalid), d.overflows(err):
			return err
		}
		d.runtime.config.Logger.LogAttrs(ctx, slog.LevelWarn, "message cannot be delayed yet: its key is held", append(d.attrs(f, err), slog.Duration("next", pause))...)
		if !f.Sleep(ctx, pause) {
			return err
		}
	}
}

// overflows tells that there is no room for the message, and that the policy wants a dead letter then.
func (d *delays) overflows(err error) bool {
	return errors.Is(err, parking.ErrFull) && d.config.Park.Overflow == parking.DeadLetter
}

// try makes one try. Its context outlives the message's: a transaction that was begun is to end with an answer.
func (d *delays) try(ctx context.Context, f *flight.Flight, record poison.Record, left time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), delayTimeout)
	defer cancel()
	if f.Delays == flight.DelaysInOrder {
		kept, err := d.parker.Delay(ctx, record, left)
		if err == nil && !kept {
			err = fmt.Errorf("%w: it has no key or no id", outbox.ErrInvalid)
		}
		return err
	}
	redrive := poison.Redrive{Kind: poison.KindDelay, Hops: record.Hops, Batch: record.Batch, Record: record}
	msg, err := redrive.Message(d.maxHeaderBytes)
	if err != nil {
		return fmt.Errorf("%w: %w", outbox.ErrInvalid, err)
	}
	return outbox.Delay(ctx, d.outbox, left, poison.RedriveTopic(d.config.Name), msg)
}
