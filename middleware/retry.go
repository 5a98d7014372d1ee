package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v4"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
)

// Retry runs the handler until it succeeds, the policy is used up, or trying again cannot help. It blocks
// its goroutine while it waits between attempts, and so holds the message's lane: nothing of the same key
// overtakes. Of an intake's concurrency it takes nothing meanwhile.
//
// What an error leads to is the classifier's verdict:
//
//   - Retry: wait by the backoff, try again.
//   - RetryAfter: wait as long as the error asks, try again.
//   - Poison, Drop: return a [*GaveUpError] at once. So do the other two when a limit is reached.
//   - Stop: return the error at once, marked by classify.Stop. The attempt does not count.
//
// When the message's own context is done, at an attempt's end or during a delay, every error counts as
// Stop. So does one that would be tried again, when the intake drains: the next process tries it. That is the context which the message has when it enters Retry; a time limit of an attempt belongs
// inside.
//
// Each attempt gets the message as it entered: context, metadata, id, and the same payload slice. The
// payload's bytes are not copied, so a handler must not write into them. Messages that a failed attempt
// returns are dropped.
func Retry(c RetryConfig) (message.HandlerMiddleware, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := &retry{RetryConfig: c.withDefaults()}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) { return r.handle(msg, h) }
	}, nil
}

// Attempt tells which run of the handler for this delivery ctx belongs to, 1 is the first. It is 0 where
// no Retry stands outside.
func Attempt(ctx context.Context) int {
	if f := flight.From(ctx); f != nil {
		return f.Attempt
	}
	return 0
}

type retry struct{ RetryConfig }

// handle is the way of a message whose first attempt succeeds; it allocates nothing.
func (r *retry) handle(msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	f := flight.Ensure(msg)
	ctx := msg.Context()
	if err := f.TakeExit(); err != nil {
		return nil, r.exited(ctx, f, err)
	}
	if ctx.Err() != nil {
		return nil, classify.Stop(context.Cause(ctx))
	}
	kept := !r.ReadOnly && f.Keep(msg)
	f.StartAttempt()
	out, err := h(msg)
	if err != nil {
		if out, err = r.again(ctx, f, msg, h, err); err != nil {
			f.Restore(msg)
		}
	}
	msg.SetContext(ctx)
	// Not deferred: when the handler ends its goroutine, the stages run once more and need the snapshot.
	if kept {
		f.Forget()
	}
	return out, err
}

// again is called when the first attempt failed with err. It runs the others.
func (r *retry) again(
	ctx context.Context, f *flight.Flight, msg *message.Message, h message.HandlerFunc, err error,
) ([]*message.Message, error) {
	now := time.Now()
	fail := GaveUpError{Attempts: 1, FirstFailure: now, LastFailure: now, Err: err}
	var steps *backoff.ExponentialBackOff
	for {
		result := r.Classifier.Classify(fail.Err)
		if result.Verdict == classify.VerdictStop || ctx.Err() != nil {
			f.Attempt--
			return nil, classify.Stop(fail.Err)
		}
		fail.Verdict, fail.ErrorType = result.Verdict, result.ErrorType

		var delay time.Duration
		switch {
		case result.Verdict == classify.VerdictRetryAfter:
			delay = result.After
		case result.Verdict == classify.VerdictRetry:
			if steps == nil {
				steps = r.backoff()
			}
			delay = r.step(steps)
		}
		if !r.goesOn(&fail, delay) {
			return nil, &fail
		}
		if f.IsDraining() {
			f.Attempt--
			return nil, classify.Stop(fail.Err)
		}
		if r.OnRetry != nil {
			r.OnRetry(ctx, RetryEvent{
				Attempt: fail.Attempts, Delay: delay,
				Verdict: result.Verdict, ErrorType: result.ErrorType, Err: fail.Err,
			})
		}
		if !f.Sleep(ctx, delay) {
			return nil, classify.Stop(fail.Err)
		}

		msg.SetContext(ctx)
		f.Restore(msg)
		f.StartAttempt()
		out, err := h(msg)
		if err == nil {
			return out, nil
		}
		fail.Attempts++
		fail.Err, fail.LastFailure = err, time.Now()
	}
}

// goesOn tells whether another attempt is made, delay after the last failure.
func (r *retry) goesOn(fail *GaveUpError, delay time.Duration) bool {
	switch fail.Verdict {
	case classify.VerdictRetry:
	case classify.VerdictRetryAfter:
		if delay > r.MaxRetryAfter {
			return false
		}
	default:
		return false
	}
	if fail.Attempts >= r.MaxAttempts {
		return false
	}
	elapsed := fail.LastFailure.Sub(fail.FirstFailure)
	return r.MaxElapsed == NoLimit || delay <= r.MaxElapsed-elapsed
}

// exited is the outcome of an attempt that ended its goroutine by runtime.Goexit. There is no other: what
// runs now runs in that goroutine's deferred calls, one on top of the other.
func (r *retry) exited(ctx context.Context, f *flight.Flight, err error) error {
	result := r.Classifier.Classify(err)
	if result.Verdict == classify.VerdictStop || ctx.Err() != nil {
		f.Attempt--
		return classify.Stop(err)
	}
	now := time.Now()
	return &GaveUpError{
		Verdict: result.Verdict, ErrorType: result.ErrorType,
		Attempts: f.Attempt, FirstFailure: now, LastFailure: now, Err: err,
	}
}

// backoff returns a fresh backoff. Messages must not share one: each would lengthen the other's delays.
func (r *retry) backoff() *backoff.ExponentialBackOff {
	b := &backoff.ExponentialBackOff{
		InitialInterval:     r.InitialDelay,
		MaxInterval:         r.MaxDelay,
		Multiplier:          r.Multiplier,
		RandomizationFactor: max(r.Jitter, 0),
		MaxElapsedTime:      0, // never ends by itself: goesOn holds all delays to one limit, RetryAfter's too
		Stop:                backoff.Stop,
		Clock:               backoff.SystemClock,
	}
	b.Reset()
	return b
}

// step takes the next delay, once: what is reported is what is slept.
func (r *retry) step(b *backoff.ExponentialBackOff) time.Duration {
	d := b.NextBackOff()
	if r.Jitter > 0 && d > 0 {
		d-- // the backoff's random delay may be 1 ns over its range
	}
	// The backoff bounds its interval before the jitter, and overflows with a very long one.
	if d < 0 || d > r.MaxDelay {
		return r.MaxDelay
	}
	return d
}
