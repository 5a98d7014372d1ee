package classify_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/headrace-go/headrace/classify"
)

const (
	none       = classify.VerdictNone
	drop       = classify.VerdictDrop
	retry      = classify.VerdictRetry
	retryAfter = classify.VerdictRetryAfter
	poison     = classify.VerdictPoison
	stop       = classify.VerdictStop
)

var errStolen = errors.New("card is stolen")

// judged is one line of a table: an error and what the default classifier says of it.
type judged struct {
	name    string
	err     error
	verdict classify.Verdict
	typ     string
}

func check(t *testing.T, c *classify.Classifier, table []judged) {
	t.Helper()
	for _, row := range table {
		t.Run(row.name, func(t *testing.T) {
			got := c.Classify(row.err)
			if got.Verdict != row.verdict || got.ErrorType != row.typ {
				t.Errorf("Classify(%T %s)\n got %v %q\nwant %v %q",
					row.err, text(row.err), got.Verdict, got.ErrorType, row.verdict, row.typ)
			}
			if (got.After > 0) != (got.Verdict == retryAfter) {
				t.Errorf("Classify(%T) has the verdict %v with After %v", row.err, got.Verdict, got.After)
			}
		})
	}
}

// text is the error's text, if it can give one.
func text(err error) (s string) {
	defer func() {
		if v := recover(); v != nil {
			s = fmt.Sprint("(its Error panics: ", v, ")")
		}
	}()
	if err == nil {
		return "<nil>"
	}
	return err.Error()
}

func TestMarks(t *testing.T) {
	check(t, nil, []judged{
		{"permanent", classify.Permanent(errStolen), poison, "_OTHER"},
		{"transient", classify.Transient(errStolen), retry, "_OTHER"},
		{"retry after", classify.RetryAfter(errStolen, time.Minute), retryAfter, "_OTHER"},
		{"retry after nothing", classify.RetryAfter(errStolen, 0), retry, "_OTHER"},
		{"retry after less than nothing", classify.RetryAfter(errStolen, -time.Second), retry, "_OTHER"},
		{"drop", classify.Drop(errStolen), drop, "_OTHER"},
		{"stop", classify.Stop(context.Canceled), stop, "canceled"},
		{"permanent survives wrapping", fmt.Errorf("charge: %w", classify.Permanent(errStolen)), poison, "_OTHER"},
		{"a mark overrules what it wraps", classify.Permanent(io.EOF), poison, "eof"},
		{"a mark overrules what wraps it", &classify.PanicError{Value: classify.Transient(errStolen)}, retry, "panic"},
		{"the outer mark decides", classify.Transient(classify.Permanent(errStolen)), retry, "_OTHER"},
		{
			"the outer mark decides at a distance",
			fmt.Errorf("a: %w", classify.Drop(fmt.Errorf("b: %w", classify.Stop(errStolen)))), drop, "_OTHER",
		},
		{
			"a mark decides for a whole join",
			classify.Drop(errors.Join(classify.Permanent(errStolen), io.EOF)), drop, "_OTHER",
		},
		{"the innermost exported type names it", classify.Permanent(&LimitError{}), poison, "classify_test.LimitError"},
		{"a type above the mark names it", &LimitError{Cause: classify.Drop(errStolen)}, drop, "classify_test.LimitError"},
	})
}

func TestMarksOfNilAreNil(t *testing.T) {
	for name, err := range map[string]error{
		"Permanent":  classify.Permanent(nil),
		"Transient":  classify.Transient(nil),
		"RetryAfter": classify.RetryAfter(nil, time.Second),
		"Drop":       classify.Drop(nil),
		"Stop":       classify.Stop(nil),
	} {
		if err != nil {
			t.Errorf("%s(nil) = %v, want nil", name, err)
		}
	}
}

func TestMarksHideNothing(t *testing.T) {
	for _, err := range []error{
		classify.Permanent(errStolen), classify.Transient(errStolen), classify.RetryAfter(errStolen, 1),
		classify.Drop(errStolen), classify.Stop(errStolen),
	} {
		if !errors.Is(err, errStolen) || err.Error() != errStolen.Error() {
			t.Errorf("%#v: Is(errStolen) = %v, text %q, want true, %q", err, errors.Is(err, errStolen), err, errStolen)
		}
	}
}

func TestNilIsNone(t *testing.T) {
	for name, c := range map[string]*classify.Classifier{"nil": nil, "zero": {}, "new": classify.New()} {
		if got := c.Classify(nil); got != (classify.Result{}) {
			t.Errorf("%s classifier: Classify(nil) = %+v, want the zero Result", name, got)
		}
	}
	if got, ok := classify.Standard(nil); ok || got != (classify.Result{}) {
		t.Errorf("Standard(nil) = %+v, %v, want the zero Result, false", got, ok)
	}
}

func TestUnknownIsRetried(t *testing.T) {
	check(t, nil, []judged{
		{"plain", errStolen, retry, "_OTHER"},
		{"wrapped", fmt.Errorf("a: %w", fmt.Errorf("b: %w", errStolen)), retry, "_OTHER"},
		{"joined", errors.Join(errStolen, errStolen), retry, "_OTHER"},
		{"exported type", &LimitError{}, retry, "classify_test.LimitError"},
		{"exported type, joined", fmt.Errorf("%w and %w", errStolen, &LimitError{}), retry, "classify_test.LimitError"},
		{"exported type wraps another", &LimitError{Cause: TextError("x")}, retry, "classify_test.TextError"},
		{"unexported type", unexported{}, retry, "_OTHER"},
		{"generic type", Generic[map[string]int]{}, retry, "classify_test.Generic"},
		{"long name", AnErrorWhoseNameIsLongerThanAnyoneWouldWantToSeeInATableOfMetrics{}, retry, "_OTHER"},
	})
}

func TestJoinedErrorsTakeTheWorstVerdict(t *testing.T) {
	inOrder := []error{
		classify.Drop(errStolen),
		classify.Transient(errStolen),
		classify.RetryAfter(errStolen, time.Second),
		classify.Permanent(errStolen),
		classify.Stop(errStolen),
	}
	want := []classify.Verdict{drop, retry, retryAfter, poison, stop}
	for i, a := range inOrder {
		for j, b := range inOrder {
			for _, joined := range []error{
				errors.Join(a, b),
				fmt.Errorf("x: %w", errors.Join(nil, a, b)),
				fmt.Errorf("%w, %w", a, b),
				errors.Join(errors.Join(a), fmt.Errorf("y: %w", errors.Join(b))),
				multi{a, b},
			} {
				if got := (*classify.Classifier)(nil).Classify(joined); got.Verdict != want[max(i, j)] {
					t.Errorf("%v joined with %v as %T: got %v, want %v", want[i], want[j], joined, got.Verdict, want[max(i, j)])
				}
			}
		}
	}
	check(t, nil, []judged{
		{"an unknown branch outweighs drop", errors.Join(classify.Drop(io.EOF), errStolen), retry, "_OTHER"},
		{"an unknown branch names it", errors.Join(classify.Drop(io.EOF), &LimitError{}), retry, "classify_test.LimitError"},
		{"an unknown branch does not hide poison", errors.Join(errStolen, classify.Permanent(io.EOF)), poison, "eof"},
		{"a known branch names it", errors.Join(errStolen, io.EOF), retry, "eof"},
		{"known above the join", &Status{Code: 400, Cause: errors.Join(io.EOF, io.EOF)}, poison, "http.400"},
		{"worse below the join", &Status{Code: 503, Cause: errors.Join(io.EOF, classify.Permanent(errStolen))}, poison, "http.503"},
		{"nil is no branch", multi{nil, classify.Drop(io.EOF), nil}, drop, "eof"},
		{"nothing joined", multi{}, retry, "_OTHER"},
		{"only nil joined", multi{nil, nil}, retry, "_OTHER"},
	})
}

func TestLongerOfTwoDelaysWins(t *testing.T) {
	short, long := classify.RetryAfter(errStolen, time.Second), classify.RetryAfter(errStolen, time.Minute)
	for _, err := range []error{errors.Join(short, long), errors.Join(long, short)} {
		if got := classify.New().Classify(err); got.Verdict != retryAfter || got.After != time.Minute {
			t.Errorf("joined delays of 1s and 1m: got %v %v, want retry_after 1m", got.Verdict, got.After)
		}
	}
}

func TestOuterKnownErrorDecides(t *testing.T) {
	check(t, nil, []judged{
		{"400 that wraps an EOF", &Status{Code: 400, Cause: io.EOF}, poison, "http.400"},
		{"503 that wraps a 400", &Status{Code: 503, Cause: &Status{Code: 400}}, retry, "http.503"},
		{"a status that is not known wraps a 400", &Status{Code: 302, Cause: &Status{Code: 400}}, poison, "http.400"},
		{"a guess does not outweigh what is known", timeout{cause: &Status{Code: 400}}, poison, "http.400"},
	})
}

func TestVerdictNames(t *testing.T) {
	for v, want := range map[classify.Verdict]string{
		none: "none", drop: "drop", retry: "retry", retryAfter: "retry_after", poison: "poison", stop: "stop", 99: "invalid",
	} {
		if got := v.String(); got != want {
			t.Errorf("Verdict(%d).String() = %q, want %q", v, got, want)
		}
	}
	if !(none < drop && drop < retry && retry < retryAfter && retryAfter < poison && poison < stop) {
		t.Error("the verdicts are out of order, want none < drop < retry < retry_after < poison < stop")
	}
}

// Errors of every sort that the tests need.

type LimitError struct{ Cause error }

func (e *LimitError) Error() string { return "over the limit" }
func (e *LimitError) Unwrap() error { return e.Cause }

type TextError string

func (e TextError) Error() string { return string(e) }

type Generic[T any] struct{ _ T }

func (Generic[T]) Error() string { return "generic" }

type AnErrorWhoseNameIsLongerThanAnyoneWouldWantToSeeInATableOfMetrics struct{}

func (AnErrorWhoseNameIsLongerThanAnyoneWouldWantToSeeInATableOfMetrics) Error() string {
	return "long"
}

type unexported struct{}

func (unexported) Error() string { return "unexported" }

type multi []error

func (m multi) Error() string   { return "multi" }
func (m multi) Unwrap() []error { return m }

type Status struct {
	Code  int
	After time.Duration
	Cause error
}

func (s *Status) Error() string             { return fmt.Sprint("status ", s.Code) }
func (s *Status) HTTPStatus() int           { return s.Code }
func (s *Status) RetryAfter() time.Duration { return s.After }
func (s *Status) Unwrap() error             { return s.Cause }

type timeout struct{ cause error }

func (timeout) Error() string   { return "took too long" }
func (timeout) Timeout() bool   { return true }
func (e timeout) Unwrap() error { return e.cause }

func deep(err error, levels int) error {
	for range levels {
		err = fmt.Errorf("w: %w", err)
	}
	return err
}

func long(n int) string { return strings.Repeat("x", n) }

func typeOf(err error) string { return (*classify.Classifier)(nil).Classify(err).ErrorType }
