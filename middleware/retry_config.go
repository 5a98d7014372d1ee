package middleware

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/headrace-go/headrace/classify"
)

const (
	// NoLimit as RetryConfig.MaxElapsed leaves the number of attempts as the only limit.
	NoLimit time.Duration = -1

	// NoJitter as RetryConfig.Jitter makes every delay exact.
	NoJitter float64 = -1
)

// RetryConfig says how often and how fast a message is tried again. The zero value is five attempts within
// about two seconds. All limits hold together: whichever is reached first ends the retries.
type RetryConfig struct {
	// MaxAttempts is the most runs of the handler for one delivery, the first included. Default 5.
	//
	// The count is this process's: it begins again when the message is delivered again, after a crash
	// say. So a message that kills the process is not counted.
	MaxAttempts int

	// InitialDelay is the delay after the first failure, before jitter. Default 100 ms.
	InitialDelay time.Duration

	// MaxDelay is the longest delay of the backoff, jitter included. Default 30 s.
	MaxDelay time.Duration

	// Multiplier is what the delay grows by with each failure, at least 1. Default 2.
	Multiplier float64

	// Jitter is the share of the delay by which it is made longer or shorter at random, over 0 and at
	// most 1: 0.5 makes 100 ms to between 50 and 150 ms. Default 0.5; NoJitter turns it off.
	Jitter float64

	// MaxRetryAfter is the longest delay that an error may ask for (classify.RetryAfter, a server's
	// Retry-After). It is slept as asked, without jitter, and counts as an attempt's delay like any
	// other. A longer one is not shortened, since the server would refuse that attempt too: Retry
	// gives up at once. Default 5 min.
	MaxRetryAfter time.Duration

	// MaxElapsed is the latest that an attempt may start after the first failure of the delivery. A delay that would
	// reach beyond it is not begun: Retry gives up at once. Delays beyond MaxHold, which are kept elsewhere, do
	// not count: MaxAttempts and MaxRetryAfter bound these. Default 10 min; NoLimit turns it off.
	MaxElapsed time.Duration

	// MaxHold is the longest delay asked by an error that is waited for here, in the lane, when the message can be kept
	// elsewhere until then: by the broker (brokers.Delivery.Delay) or, under the runtime, in a database. A longer one returns
	// a [*DelayedError], which whoever settles the delivery has to act on; the runtime does. The messages that
	// follow in its key then overtake it, unless the runtime parks the key. Attempts are counted over such delays, or, where
	// the broker keeps them, its count of deliveries is, each as an attempt: with MaxAttempts reached nothing is
	// delayed any more. Default: no limit.
	MaxHold time.Duration

	// Breaker, if there is one, is asked before each attempt and before a message is given up whose error may
	// pass; see there. It belongs to one consumer.
	Breaker *Breaker

	// Classifier judges the errors; nil is the default one.
	Classifier *classify.Classifier

	// OnRetry is told of each delay before it is slept. It reports and cannot change anything; it runs
	// in the message's goroutine, so it must be quick and must not panic. It is called concurrently
	// for different messages.
	OnRetry func(context.Context, RetryEvent)

	// ReadOnly says that nothing within Retry writes to the message, such as when every handler is
	// typed and sees no message. Then its metadata need not be remembered for the next attempt.
	ReadOnly bool
}

// RetryEvent is one delay.
type RetryEvent struct {
	// Attempt is the one that failed, 1 is the first.
	Attempt int
	// Delay is what is slept now, exactly, unless the message's context ends it. Then the next attempt waits until
	// the breaker lets it run, if there is one. A held delivery may go on before.
	Delay time.Duration
	// Held says that the attempts are used up, and that nothing else is known to succeed: see [Breaker].
	Held bool
	// Verdict is VerdictRetry or VerdictRetryAfter.
	Verdict classify.Verdict
	// ErrorType is the kind of error, from a bounded set.
	ErrorType string
	// Err is what the attempt returned.
	Err error
}

// Validate tells the first field that makes no sense, by name and value.
func (c RetryConfig) Validate() error {
	c = c.withDefaults()
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("middleware.RetryConfig.%s is %v: want %s", field, value, want)
	}
	switch {
	case c.MaxAttempts < 1:
		return bad("MaxAttempts", c.MaxAttempts, "1 or more, or 0 for the default")
	case c.MaxDelay < 0:
		return bad("MaxDelay", c.MaxDelay, "a positive duration, or 0 for the default")
	case c.InitialDelay < 0:
		return bad("InitialDelay", c.InitialDelay, "a positive duration, or 0 for the default")
	case c.MaxDelay < c.InitialDelay:
		return bad("MaxDelay", c.MaxDelay, fmt.Sprintf("at least InitialDelay, %v", c.InitialDelay))
	case !(c.Multiplier >= 1) || math.IsInf(c.Multiplier, 1):
		return bad("Multiplier", c.Multiplier, "1 or more, or 0 for the default")
	case c.Jitter != NoJitter && !(c.Jitter >= 0 && c.Jitter <= 1):
		return bad("Jitter", c.Jitter, "over 0 and at most 1, 0 for the default, or NoJitter")
	case c.MaxHold < 0:
		return bad("MaxHold", c.MaxHold, "a positive duration, or 0 for no limit")
	case c.MaxRetryAfter < 0:
		return bad("MaxRetryAfter", c.MaxRetryAfter, "a positive duration, or 0 for the default")
	case c.MaxElapsed < 0 && c.MaxElapsed != NoLimit:
		return bad("MaxElapsed", c.MaxElapsed, "a positive duration, 0 for the default, or NoLimit")
	}
	return nil
}

// Attempts is MaxAttempts, or its default.
func (c RetryConfig) Attempts() int { return c.withDefaults().MaxAttempts }

// Budget is the longest that the policy can hold a message's lane by delays: with the time that the handler
// itself takes, it is what a broker's patience has to cover. MaxElapsed bounds it; without a limit it is
// the sum of the longest delays.
func (c RetryConfig) Budget() time.Duration {
	c = c.withDefaults()
	limit := time.Duration(math.MaxInt64)
	if c.MaxElapsed != NoLimit {
		limit = c.MaxElapsed
	}
	// Any delay may be one that a server asked for, and a longest one of the backoff. The steps of the
	// backoff below MaxRetryAfter then do not matter.
	var sum, step float64 = 0, float64(c.InitialDelay)
	for left := c.MaxAttempts - 1; left > 0; left-- {
		longest := max(min(step*(1+max(c.Jitter, 0)), float64(c.MaxDelay)), float64(c.MaxRetryAfter))
		if step >= float64(c.MaxDelay) || c.Multiplier == 1 {
			sum += float64(left) * longest
			break
		}
		sum += longest
		step *= c.Multiplier
	}
	if sum >= float64(limit) {
		return limit
	}
	return time.Duration(sum)
}

// Delays is the longest that messages can be kept outside of their lanes, in all, where delays beyond maxHold are.
func (c RetryConfig) Delays(maxHold time.Duration) time.Duration {
	c = c.withDefaults()
	if maxHold <= 0 || c.MaxRetryAfter <= maxHold {
		return 0
	}
	if n := int64(c.MaxAttempts - 1); n <= math.MaxInt64/2/int64(c.MaxRetryAfter) {
		return time.Duration(n * int64(c.MaxRetryAfter))
	}
	return math.MaxInt64 / 2
}

func (c RetryConfig) withDefaults() RetryConfig {
	c.MaxAttempts = or(c.MaxAttempts, 5)
	c.InitialDelay = or(c.InitialDelay, min(100*time.Millisecond, or(c.MaxDelay, time.Hour)))
	c.MaxDelay = or(c.MaxDelay, max(30*time.Second, c.InitialDelay))
	c.Multiplier = or(c.Multiplier, 2)
	c.Jitter = or(c.Jitter, 0.5)
	c.MaxRetryAfter = or(c.MaxRetryAfter, 5*time.Minute)
	c.MaxElapsed = or(c.MaxElapsed, 10*time.Minute)
	return c
}

// or returns v, or what it defaults to when it is zero.
func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}
