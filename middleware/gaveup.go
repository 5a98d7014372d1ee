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

	// Attempts is how often the handler ran. It does not count what a shutdown broke off, nor what
	// earlier processes did.
	Attempts int

	// FirstFailure and LastFailure are when the first and the last attempt had failed.
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
