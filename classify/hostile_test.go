package classify_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/headrace-go/headrace/classify"
)

// hostile is an error of which every method panics, those included that the rules look for.
type hostile struct{}

func (hostile) Error() string             { panic("Error") }
func (hostile) Unwrap() error             { panic("Unwrap") }
func (hostile) Is(error) bool             { panic("Is") }
func (hostile) As(any) bool               { panic("As") }
func (hostile) Timeout() bool             { panic("Timeout") }
func (hostile) SQLState() string          { panic("SQLState") }
func (hostile) HTTPStatus() int           { panic("HTTPStatus") }
func (hostile) RetryAfter() time.Duration { panic("RetryAfter") }
func (hostile) GRPCStatus() int           { panic("GRPCStatus") }

// each is an error of which one method panics.
type (
	panicsInUnwrap   struct{ error }
	panicsInUnwraps  struct{ error }
	panicsInWrapped  struct{ error }
	panicsInIs       struct{ error }
	panicsInTimeout  struct{ error }
	panicsInSQLState struct{ error }
	panicsInHTTP     struct{ error }
	panicsInDelay    struct{ error }
	panicsInGRPC     struct{ error }
)

func (panicsInUnwrap) Unwrap() error            { panic(nil) }
func (panicsInUnwraps) Unwrap() []error         { panic("x") }
func (panicsInWrapped) WrappedErrors() []error  { panic("x") }
func (panicsInIs) Is(error) bool                { panic(io.EOF) }
func (panicsInTimeout) Timeout() bool           { panic("x") }
func (panicsInSQLState) SQLState() string       { panic("x") }
func (panicsInHTTP) HTTPStatus() int            { panic("x") }
func (panicsInDelay) RetryAfter() time.Duration { panic("x") }
func (panicsInGRPC) GRPCStatus() error          { panic("x") }

func TestMethodsThatPanicSayNothing(t *testing.T) {
	for _, err := range []error{
		hostile{},
		&hostile{}, (*hostile)(nil),
		panicsInUnwrap{},
		panicsInUnwraps{},
		panicsInWrapped{},
		panicsInIs{},
		panicsInTimeout{},
		panicsInSQLState{},
		panicsInHTTP{},
		panicsInDelay{},
		panicsInGRPC{},
	} {
		check(t, nil, []judged{
			{fmt.Sprintf("%T", err), err, retry, "_OTHER"},
			{fmt.Sprintf("%T in a mark", err), classify.Permanent(err), poison, "_OTHER"},
			{fmt.Sprintf("%T wraps a mark", err), fmt.Errorf("%w", classify.Drop(err)), drop, "_OTHER"},
			{
				fmt.Sprintf("%T does not hide its neighbour", err),
				errors.Join(err, classify.Permanent(io.EOF), err), poison, "eof",
			},
		})
	}
}

func TestTypedNilsAreErrors(t *testing.T) {
	check(t, nil, []judged{
		{"a nil with methods that panic", (*LimitError)(nil), retry, "classify_test.LimitError"},
		{"a nil with a status", (*Status)(nil), retry, "classify_test.Status"},
		{"a nil of ours", (*classify.HTTPError)(nil), retry, "classify.HTTPError"},
		{"a nil slice of errors", multi(nil), retry, "_OTHER"},
		{"joined", errors.Join((*Status)(nil), classify.Permanent(io.EOF)), poison, "eof"},
	})
}

// ring is an error that wraps itself, at last.
type ring struct{ next error }

func (*ring) Error() string   { return "ring" }
func (r *ring) Unwrap() error { return r.next }

// web is an error that joins itself with others.
type web struct{ next []error }

func (*web) Error() string     { return "web" }
func (w *web) Unwrap() []error { return w.next }

func TestErrorsThatLeadBackToThemselvesEnd(t *testing.T) {
	self := &ring{}
	self.next = self
	two := &ring{next: &ring{}}
	two.next.(*ring).next = two
	twice := &web{}
	twice.next = []error{twice, twice, twice}
	known := &web{}
	known.next = []error{known, classify.Permanent(io.EOF), known}
	soft := &web{}
	soft.next = []error{classify.Drop(io.EOF), soft}

	table := []judged{
		{"a ring of one", self, retry, "_OTHER"},
		{"a ring of two", two, retry, "_OTHER"},
		{"a ring behind a known error", &Status{Code: 400, Cause: self}, poison, "http.400"},
		{"a ring in a mark", classify.Permanent(self), poison, "_OTHER"},
		{"a web", twice, retry, "_OTHER"},
		{"a web with poison in it", known, poison, "eof"},
		{"a web with a drop in it", soft, retry, "_OTHER"},
		{"a ring beside poison", errors.Join(self, classify.Permanent(io.EOF)), poison, "eof"},
		{"a ring beside a drop", errors.Join(self, classify.Drop(io.EOF)), retry, "_OTHER"},
	}
	check(t, nil, table)
	// A rule that looks with errors.Is would not end.
	check(t, classify.New(is(errStolen, classify.Result{Verdict: poison}), classify.RetryPanics).
		Fallback(is(errStolen, classify.Result{Verdict: poison})), table)
}

func TestWalkIsBounded(t *testing.T) {
	unwrapped := 0
	wide := make([]error, 1_000_000)
	for i := range wide {
		wide[i] = counted{&unwrapped}
	}
	wide[999_999] = classify.Stop(errStolen)
	check(t, nil, []judged{
		{"99 levels", deep(classify.Permanent(errStolen), 99), poison, "_OTHER"},
		{"100 levels", deep(classify.Permanent(errStolen), 100), retry, "_OTHER"},
		{"a drop at the end of what is seen", errors.Join(classify.Drop(io.EOF), deep(classify.Drop(io.EOF), 200)), retry, "_OTHER"},
		{"a million branches", multi(wide), retry, "_OTHER"},
	})
	if unwrapped == 0 || unwrapped > 1000 {
		t.Errorf("of a million branches %d were looked at, want at most 1,000", unwrapped)
	}
}

type counted struct{ n *int }

func (counted) Error() string   { return "counted" }
func (c counted) Unwrap() error { *c.n++; return nil }

// nested is like *multierror.Error: its Unwrap shows one error at a time, its WrappedErrors all.
type nested struct{ errs []error }

func (nested) Error() string            { return "nested" }
func (n nested) Unwrap() error          { return errStolen }
func (n nested) WrappedErrors() []error { return n.errs }

func TestWrappedErrorsAreBranches(t *testing.T) {
	check(t, nil, []judged{
		{"the worst", nested{[]error{io.EOF, classify.Permanent(errStolen)}}, poison, "_OTHER"},
		{"none", nested{}, retry, "_OTHER"},
	})
}
