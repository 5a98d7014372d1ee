package middleware

import (
	"fmt"
	"time"

	"github.com/headrace-go/headrace/classify"
)

// GaveUpError is what [Retry] returns when it will not try again. Whoever stands outside reads it with
// errors.As; it is for them to dead-letter the message, or to drop it.
type GaveUpError struct {
	// Verdict is that of the last error: VerdictPoison or VerdictDrop when no attempt could help,
	// VerdictRetry or VerdictRetryAfter when the attempts or the time were used up.
	Verdict classify.Verdict

	// ErrorType is the kind of the last error, from a bounded set.
	ErrorType string

	// Attempts is how often the handler ran, as a breaker's probe too, and in earlier deliveries that the runtime has put
	// off (see [DelayedError]). It does not count what a shutdown broke off, nor what other earlier processes and
	// deliveries did.
	Attempts int

	// FirstFailure and LastFailure are when the first and the last of these had failed.
	FirstFailure, LastFailure time.Time

	// Err is what the last attempt returned.
	Err error
}

// Error gives the attempts, the verdict and the last error.
func (e *GaveUpError) Error() string {
	if e.Attempts == 1 {
		return fmt.Sprintf("gave up after 1 attempt (%s): %v", e.Verdict, e.Err)
	}
	return fmt.Sprintf("gave up after %d attempts (%s): %v", e.Attempts, e.Verdict, e.Err)
}

// Unwrap returns Err.
func (e *GaveUpError) Unwrap() error { return e.Err }

// DelayedError is what [Retry] returns for a message that is to be delivered again later: the error asked for a delay
// that is too long for the lane. It is no failure of the message.
type DelayedError struct {
	// After is the delay, from LastFailure on.
	After time.Duration

	// Attempts are those that count for RetryConfig.MaxAttempts, so far, and at least one. ErrorType, FirstFailure and
	// LastFailure are as in [GaveUpError].
	ErrorType                 string
	Attempts                  int
	FirstFailure, LastFailure time.Time

	// Err is what the last attempt returned.
	Err error
}

// Error gives the delay and the error.
func (e *DelayedError) Error() string {
	return fmt.Sprintf("to be delivered again after %v: %v", e.After, e.Err)
}

// Unwrap returns Err.
func (e *DelayedError) Unwrap() error { return e.Err }
