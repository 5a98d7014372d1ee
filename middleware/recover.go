package middleware

import (
	"errors"
	"runtime"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
)

// MaxStack is the most bytes of stack that [Recover] keeps. The top, where it happened, comes first.
const MaxStack = 8 << 10

// ErrGoexit is the value of the classify.PanicError that stands for a call of runtime.Goexit, which
// testing.T.FailNow makes, for one.
var ErrGoexit = errors.New("the handler called runtime.Goexit")

// Recover makes a panic of what stands inside it an error: a [*classify.PanicError] with its value and the
// top of its stack. It takes any value: nil (also under GODEBUG=panicnil=1), runtime errors, errors, and
// what has no words. What kills the process it cannot stop: a concurrent map write, a stack overflow, lack
// of memory, a panic of another goroutine.
//
// # Goexit
//
// A handler that calls runtime.Goexit ends its goroutine, and Go has no way to stop that: no stage gets to
// return. Deferred calls still run, and so two Recovers, one outside all other stages and one next to the
// handler, make it an error all the same: the outer one calls the stages once more while the goroutine
// ends, and the inner one answers at once with a classify.PanicError of [ErrGoexit], without calling the
// handler. To the stages in between, Retry, poison or the runtime's settling, it looks like a panic,
// but that Retry makes no other attempt. It costs nothing until it happens.
//
// Then the outer Recover acks the message if the stages ended well, and nacks it if not, since nobody is
// left to return to; messages that they returned cannot be published any more, so that too is a nack. A
// Recover that stands alone nacks the message. Under the runtime, acks and nacks of a message mean
// nothing, and its own settling has been done by then.
func Recover() message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			f := flight.Ensure(msg)
			if err := f.TakeExit(); err != nil {
				return nil, err
			}
			if f.Guard() {
				return guard(f, msg, h)
			}
			return attempt(f, msg, h)
		}
	}
}

// attempt is an inner Recover.
func attempt(f *flight.Flight, msg *message.Message, h message.HandlerFunc) (out []*message.Message, err error) {
	returned := false
	defer func() {
		value := recover()
		if returned {
			return
		}
		if value == nil {
			// Goexit; or a panic of nil under GODEBUG=panicnil=1, which looks the same from here. If it
			// was that, this call returns, and the guard, seeing the same, never asks what was noted.
			err = panicError(ErrGoexit)
			f.NoteExit(err)
			return
		}
		out, err = nil, panicError(value)
	}()
	out, err = h(msg)
	returned = true
	return out, err
}

// guard is the outermost Recover.
func guard(f *flight.Flight, msg *message.Message, h message.HandlerFunc) (out []*message.Message, err error) {
	ctx := msg.Context()
	returned := false
	defer func() {
		value := recover()
		if returned {
			f.Unguard()
			return
		}
		if value != nil {
			f.Unguard()
			out, err = nil, panicError(value)
			return
		}
		err = panicError(ErrGoexit)
		msg.SetContext(ctx)
		finish(f, msg, h)
	}()
	out, err = h(msg)
	returned = true
	return out, err
}

// finish settles a message whose goroutine is ending.
func finish(f *flight.Flight, msg *message.Message, h message.HandlerFunc) {
	done := false
	defer func() {
		// A second Goexit, or a panic, of a stage. Nack, which the router would do for either.
		_ = recover()
		f.Unguard()
		if !done || !msg.Ack() {
			msg.Nack()
		}
	}()
	if !f.Resume() {
		return
	}
	f.Restore(msg)
	out, err := h(msg)
	done = err == nil && len(out) == 0
}

func panicError(value any) error {
	stack := make([]byte, MaxStack)
	return &classify.PanicError{Value: value, Stack: stack[:runtime.Stack(stack, false)]}
}
