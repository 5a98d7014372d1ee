package middleware

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
)

// series is the failures of one message and what follows from them.
type series struct {
	*retry
	flight *flight.Flight
	fail   GaveUpError // all attempts
	struck int         // of these, those that failed by what no message can cause

	// What counts for the limits: the attempts since the breaker last held the message up.
	attempts int
	own      int       // those of them that failed by what the message may have caused
	since    time.Time // the first of their failures
	steps    *backoff.ExponentialBackOff

	first    uint64 // the breaker's clock of the first failure since then
	hasFirst bool

	held     bool // the limits are reached, and nothing vouches for it that the message is at fault
	heldAway bool // by an error that no message can cause
	holds    *backoff.ExponentialBackOff
}

// failed counts an attempt that returned err.
func (s *series) failed(err error) {
	now := time.Now()
	if e := s.flight.Earlier; e != nil && s.fail.Attempts == 0 {
		s.fail.Attempts, s.fail.FirstFailure = e.Attempts, e.FirstFailure
		s.attempts, s.own = e.Attempts, e.Attempts
	}
	s.fail.Attempts++
	s.fail.Err, s.fail.LastFailure = err, now
	if s.fail.FirstFailure.IsZero() {
		s.fail.FirstFailure = now
	}
	if s.attempts++; s.attempts == 1 || s.since.IsZero() {
		s.since = now
	}
}

// judge reports the failure, whose classification is result, to the breaker, and tells how long to wait before the
// next attempt, or the error to end with.
func (s *series) judge(result classify.Result, p pass) (time.Duration, error) {
	s.fail.Verdict, s.fail.ErrorType = result.Verdict, result.ErrorType
	switch result.Verdict {
	case classify.VerdictRetry, classify.VerdictRetryAfter:
	case classify.VerdictPoison:
		s.Breaker.failedForGood(s.flight, p, result.ErrorType)
		return 0, &s.fail
	default:
		s.Breaker.dropped(p)
		return 0, &s.fail
	}
	if result.Unavailable && !s.Breaker.off() {
		s.struck++
	} else {
		s.own++
	}
	leaves := s.leavesLane(result)
	if leaves && !result.Unavailable {
		s.Breaker.dropped(p) // to ask for another time is no failure of what the handler depends on
	} else if clock := s.Breaker.failed(s.flight, p, result.ErrorType); !s.hasFirst {
		s.first, s.hasFirst = clock, true
	}
	if leaves {
		return 0, s.delayed(result)
	}
	if !s.held {
		if delay, ok := s.within(result); ok {
			return delay, nil
		}
	}
	if !s.Breaker.mayGiveUp(s.flight, s.first, result.Unavailable) {
		s.held, s.heldAway = true, result.Unavailable
		return s.holdFor(result), nil
	}
	if s.beginsAnew(result) {
		if s.leavesLane(result) {
			return 0, s.delayed(result)
		}
		if delay, ok := s.within(result); ok {
			return delay, nil
		}
	}
	s.Breaker.gaveUp()
	return 0, &s.fail
}

// beginsAnew gives a message attempts in place of those that say nothing of it, if there are any.
func (s *series) beginsAnew(result classify.Result) bool {
	switch own := s.own; {
	case s.held && (!s.heldAway || result.Unavailable):
		// It may have failed for no other reason than those that fail no longer: it gets one full series
		// to show.
		s.restart()
	case !result.Unavailable && own < s.attempts:
		// Some have failed by what it cannot have caused.
		s.restart()
		s.attempts, s.own = own, own
	default:
		return false
	}
	return true
}

// delayed is the error of a message that leaves its lane. It has at least the attempt that asked for it.
func (s *series) delayed(result classify.Result) error {
	return &DelayedError{
		After: result.After, ErrorType: result.ErrorType, Attempts: max(s.counted(), 1),
		FirstFailure: s.fail.FirstFailure, LastFailure: s.fail.LastFailure, Err: s.fail.Err,
	}
}

// leavesLane tells whether the error asks for a delay that is to be kept outside of the process.
func (s *series) leavesLane(result classify.Result) bool {
	return s.isLong(result) && result.After <= s.MaxRetryAfter && s.deliveries()+s.counted() < s.MaxAttempts
}

// isLong tells whether the error asks for a delay that is not waited for in the lane.
func (s *series) isLong(result classify.Result) bool {
	return result.Verdict == classify.VerdictRetryAfter && s.MaxHold > 0 && result.After > s.MaxHold &&
		s.flight.CanDelay(result.InOrder)
}

// counted is how many attempts count for delays that are kept outside of the lane.
func (s *series) counted() int { return s.fail.Attempts - s.struck }

// deliveries is how often the broker has delivered the message before.
func (s *series) deliveries() int { return max(s.flight.Delivery.Count-1, 0) }

// within gives the delay before the next attempt, if one is within the limits.
func (s *series) within(result classify.Result) (time.Duration, bool) {
	if s.attempts >= s.MaxAttempts {
		return 0, false
	}
	delay := result.After
	if result.Verdict == classify.VerdictRetry {
		if s.steps == nil {
			s.steps = newBackoff(s.InitialDelay, s.MaxDelay, s.Multiplier, max(s.Jitter, 0))
		}
		delay = s.step(s.steps)
	} else if delay > s.MaxRetryAfter || s.asksAgain(result) {
		return 0, false
	}
	elapsed := s.fail.LastFailure.Sub(s.since)
	return delay, s.MaxElapsed == NoLimit || delay <= s.MaxElapsed-elapsed
}

// asksAgain tells that delays were kept for the message as often as there are attempts.
func (s *series) asksAgain(result classify.Result) bool {
	return s.isLong(result) && s.deliveries()+s.counted() >= s.MaxAttempts
}

// holdFor gives the delay before a message that is held is tried again.
func (s *series) holdFor(result classify.Result) time.Duration {
	c := &s.Breaker.config
	if s.holds == nil {
		s.holds = newBackoff(c.ProbeDelay, c.MaxProbeDelay, 2, 0.2)
	}
	delay := s.holds.NextBackOff()
	if delay < 0 || delay > c.MaxProbeDelay {
		delay = c.MaxProbeDelay
	}
	if result.Verdict == classify.VerdictRetryAfter {
		delay = max(delay, min(result.After, s.MaxRetryAfter))
	}
	return delay
}

// wait lets delay pass, and then waits until the breaker lets the message go on.
func (s *series) wait(ctx context.Context, delay time.Duration) (pass, bool) {
	sleep := s.flight.Sleep
	if s.held {
		sleep = func(ctx context.Context, d time.Duration) bool { return s.Breaker.hold(ctx, s.flight, d) }
	}
	if !sleep(ctx, delay) {
		return pass{}, false
	}
	p, ok := s.Breaker.enter(ctx, s.flight)
	if p.waited {
		// What failed before then failed with all others. It counts for no limit, nor does the time.
		s.restart()
		s.hasFirst = false
	}
	return p, ok
}

// restart begins the limits anew.
func (s *series) restart() {
	s.attempts, s.own, s.since, s.steps = 0, 0, s.fail.LastFailure, nil
	s.held, s.holds = false, nil
}

// newBackoff returns a fresh backoff. Messages must not share one: each would lengthen the other's delays.
func newBackoff(initial, longest time.Duration, multiplier, jitter float64) *backoff.ExponentialBackOff {
	b := &backoff.ExponentialBackOff{
		InitialInterval:     initial,
		MaxInterval:         longest,
		Multiplier:          multiplier,
		RandomizationFactor: jitter,
		MaxElapsedTime:      0, // never ends by itself: within holds all delays to one limit, RetryAfter's too
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
