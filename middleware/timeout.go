package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
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
		return func(msg *message.Message) ([]*message.Message, error) {
			outer := msg.Context()
			started := time.Now()
			ctx, cancel := context.WithDeadline(outer, started.Add(d))
			defer func() {
				cancel()
				msg.SetContext(outer)
			}()
			msg.SetContext(ctx)

			out, err := h(msg)
			if err != nil && outer.Err() == nil && isContextError(err) &&
				errors.Is(ctx.Err(), context.DeadlineExceeded) {
				err = &TimeoutError{Limit: d, Took: time.Since(started), Err: err}
			}
			return out, err
		}
	}
}

// isContextError tells whether err can come from a context that ended. Some libraries say canceled where
// the context says deadline exceeded.
func isContextError(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
