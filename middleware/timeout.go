package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/internal/deadline"
)

// TimeoutError says that an attempt failed because its time was up.
type TimeoutError struct {
	// Limit is the time that the attempt had; Took is when the handler did return.
	Limit, Took time.Duration
	// Err is what the handler returned.
	Err error
}

// Error gives the limit, the time taken, and the handler's error.
func (e *TimeoutError) Error() string {
	return fmt.Sprintf("attempt exceeded its limit of %v (it returned after %v): %v", e.Limit, e.Took, e.Err)
}

// Unwrap returns Err.
func (e *TimeoutError) Unwrap() error { return e.Err }

// Timeout is true, as net.Error has it.
func (e *TimeoutError) Timeout() bool { return true }

// Timeout gives the handler a context that ends d after it was called. Within Retry, every attempt has the
// whole of d. It panics if d is not positive.
//
// The limit is cooperative. Timeout waits until the handler returns, however long that takes, and so its
// lane stays held: a handler that went on in the background would overlap with the next message of its key,
// or with its own retry. So a handler has to pass its context on to whatever it waits for.
//
// An error that the ended context led to is returned as a [*TimeoutError]. A handler that succeeds late has
// succeeded. The message's context is put back before Timeout returns.
func Timeout(d time.Duration) message.HandlerMiddleware {
	if d <= 0 {
		panic(fmt.Sprintf("middleware.Timeout: the limit is %v: want more than 0", d))
	}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (out []*message.Message, err error) {
			outer := msg.Context()
			defer msg.SetContext(outer)
			err = WithTimeout(outer, d, func(ctx context.Context) error {
				msg.SetContext(ctx)
				out, err = h(msg)
				return err
			})
			return out, err
		}
	}
}

// WithTimeout is [Timeout] for any function: the runtime uses it where the limit begins after BEGIN.
func WithTimeout(ctx context.Context, d time.Duration, f func(context.Context) error) error {
	started := time.Now()
	limited := deadline.New(ctx, started.Add(d))
	defer limited.Stop()
	err := f(limited)
	if err != nil && limited.Expired() && isContextError(err) {
		return &TimeoutError{Limit: d, Took: time.Since(started), Err: err}
	}
	return err
}

// isContextError tells whether err can come from a context that ended. Some libraries say canceled where
// the context says deadline exceeded.
func isContextError(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
