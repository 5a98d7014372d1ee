package classify

import (
	"context"
	"runtime"
)

// known judges one error by itself, without what it wraps. VerdictNone: it is not known.
func known(err error) (r Result) {
	defer func() {
		if recover() != nil {
			r = Result{}
		}
	}()
	switch err {
	case context.Canceled:
		return Result{Verdict: VerdictRetry, ErrorType: "canceled"}
	case context.DeadlineExceeded:
		return Result{Verdict: VerdictRetry, ErrorType: "timeout"}
	}
	switch err.(type) {
	case *PanicError, runtime.Error:
		return Result{Verdict: VerdictPoison, ErrorType: "panic"}
	}
	return Result{}
}

// guessed judges one error by what many unlike errors have in common.
func guessed(err error) (r Result) {
	defer func() {
		if recover() != nil {
			r = Result{}
		}
	}()
	if t, ok := err.(interface{ Timeout() bool }); ok && t.Timeout() {
		return Result{Verdict: VerdictRetry, ErrorType: "timeout"}
	}
	return Result{}
}

// Standard is the [Rule] that every classifier asks after its own.
func Standard(err error) (Result, bool) {
	if err == nil {
		return Result{}, false
	}
	w := walk{left: maxErrors}
	r := w.judge(err, 0)
	return r, r.Verdict != VerdictNone
}
