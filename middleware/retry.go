package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

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
//   - Poison, Drop: return a [*GaveUpError] at once. So do the other two when a limit is reached, unless the
//     breaker holds the message back.
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
	p, ok := r.Breaker.enter(ctx, f)
	if !ok {
		return nil, classify.Stop(errNotBegun)
	}
	kept := !r.ReadOnly && f.Keep(msg)
	f.StartAttempt()
	out, err := r.attempt(msg, h, p)
	if err == nil {
		r.Breaker.succeeded(f, p)
	} else if out, err = r.again(ctx, f, msg, h, p, err); err != nil {
		f.Restore(msg)
	}
	msg.SetContext(ctx)
	// Not deferred: when the handler ends its goroutine, the stages run once more and need the snapshot.
	if kept {
		f.Forget()
	}
	return out, err
}

// errNotBegun is why a delivery came to nothing that was held up before its first attempt.
var errNotBegun = errors.New("ended while it waited for the breaker")

// attempt runs the handler. A permit is given back even if that does not return.
func (r *retry) attempt(msg *message.Message, h message.HandlerFunc, p pass) (out []*message.Message, err error) {
	if !p.permit {
		return h(msg)
	}
	returned := false
	defer func() {
		if !returned {
			r.Breaker.proved(p)
		}
	}()
	out, err = h(msg)
	returned = true
	return out, err
}

// again is called when the first attempt failed with err. It runs the others.
func (r *retry) again(
	ctx context.Context, f *flight.Flight, msg *message.Message, h message.HandlerFunc, p pass, err error,
) ([]*message.Message, error) {
	s := series{retry: r, flight: f}
	s.failed(err)
	for {
		result := r.Classifier.Classify(err)
		if result.Verdict == classify.VerdictStop || ctx.Err() != nil {
			r.Breaker.proved(p)
			f.Attempt--
			return nil, classify.Stop(err)
		}
		delay, end := s.judge(result, p)
		if end != nil {
			return nil, end
		}
		if f.IsDraining() {
			f.Attempt--
			return nil, classify.Stop(err)
		}
		if r.OnRetry != nil {
			r.OnRetry(ctx, RetryEvent{
				Attempt: s.fail.Attempts, Delay: delay, Held: s.held,
				Verdict: result.Verdict, ErrorType: result.ErrorType, Err: err,
			})
		}
		var ok bool
		if p, ok = s.wait(ctx, delay); !ok {
			return nil, classify.Stop(err)
		}

		msg.SetContext(ctx)
		f.Restore(msg)
		f.StartAttempt()
		var out []*message.Message
		if out, err = r.attempt(msg, h, p); err == nil {
			r.Breaker.succeeded(f, p)
			return out, nil
		}
		s.failed(err)
	}
}

// exited is the outcome of an attempt that ended its goroutine by runtime.Goexit. There is no other: what
// runs now runs in that goroutine's deferred calls, one on top of the other.
func (r *retry) exited(ctx context.Context, f *flight.Flight, err error) error {
	result := r.Classifier.Classify(err)
	if result.Verdict == classify.VerdictStop || ctx.Err() != nil {
		f.Attempt--
		return classify.Stop(err)
	}
	r.Breaker.failedForGood(f, pass{}, result.ErrorType)
	now := time.Now()
	fail := &GaveUpError{
		Verdict: result.Verdict, ErrorType: result.ErrorType,
		Attempts: f.Attempt, FirstFailure: now, LastFailure: now, Err: err,
	}
	if e := f.Earlier; e != nil {
		fail.Attempts, fail.FirstFailure = f.Attempt+e.Attempts, e.FirstFailure
	}
	return fail
}
