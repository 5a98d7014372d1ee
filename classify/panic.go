package classify

import (
	"errors"
	"fmt"
	"runtime"
)

// PanicError is a panic of a handler as an error. The stage that recovers makes it.
type PanicError struct {
	// Value is what the handler panicked with.
	Value any

	// Stack is the stack of the goroutine at the time of the panic, as long as its maker chose it.
	Stack []byte
}

// Error gives the value in words, without the stack.
func (e *PanicError) Error() string {
	if e == nil {
		return "panic"
	}
	return "panic: " + fmt.Sprint(e.Value)
}

// Unwrap returns the value if it is an error, else nil. So a mark on a panic's value holds:
// panic(classify.Transient(err)) is retried.
func (e *PanicError) Unwrap() error {
	if e == nil {
		return nil
	}
	err, _ := e.Value.(error)
	return err
}

// RetryPanics is a [Rule] for applications whose panics are worth another attempt: it answers Retry for a
// [PanicError] and for a runtime.Error, which [Standard] poisons.
func RetryPanics(err error) (Result, bool) {
	if _, ok := errors.AsType[*PanicError](err); ok {
		return Result{Verdict: VerdictRetry, ErrorType: "panic"}, true
	}
	if _, ok := errors.AsType[runtime.Error](err); ok {
		return Result{Verdict: VerdictRetry, ErrorType: "panic"}, true
	}
	return Result{}, false
}
