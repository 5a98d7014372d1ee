package classify_test

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/headrace-go/headrace/classify"
)

// is is a rule that answers r for errors that are target.
func is(target error, r classify.Result) classify.Rule {
	return func(err error) (classify.Result, bool) { return r, errors.Is(err, target) }
}

func all(r classify.Result) classify.Rule {
	return func(error) (classify.Result, bool) { return r, true }
}

func TestRulesComeBeforeTheStandardOnes(t *testing.T) {
	c := classify.New(
		is(io.EOF, classify.Result{Verdict: drop, ErrorType: "end"}),
		is(io.EOF, classify.Result{Verdict: poison}),
		is(io.ErrNoProgress, classify.Result{Verdict: poison}),
	)
	check(t, c, []judged{
		{"the first rule that answers", fmt.Errorf("read: %w", io.EOF), drop, "end"},
		{"a rule without a name gets the standard one", deep(io.ErrNoProgress, 5), poison, "io"},
		{"no rule answers", io.ErrUnexpectedEOF, retry, "eof"},
		{"a mark overrules a rule", classify.Permanent(io.EOF), poison, "end"},
		{"a mark below overrules a rule", &Status{Code: 400, Cause: classify.Transient(io.EOF)}, retry, "http.400"},
		{"a rule overrules an outer standard error", &Status{Code: 400, Cause: io.EOF}, drop, "end"},
	})
}

func TestRulesAndJoinedErrors(t *testing.T) {
	errBatch := errors.New("batch")
	c := classify.New(
		is(errStolen, classify.Result{Verdict: poison, ErrorType: "stolen"}),
		is(errBatch, classify.Result{Verdict: drop, ErrorType: "batch"}),
		func(err error) (classify.Result, bool) {
			m, ok := errors.AsType[multi](err)
			return classify.Result{Verdict: retryAfter, After: time.Second, ErrorType: "multi"}, ok && len(m) == 3
		},
	)
	check(t, c, []judged{
		{"a rule knows one branch", errors.Join(io.EOF, errStolen), poison, "stolen"},
		{"a rule makes no branch weaker", errors.Join(errBatch, errStolen), poison, "stolen"},
		{"a rule does not drop an unknown branch", errors.Join(errBatch, errors.New("?")), retry, "_OTHER"},
		{
			"a marked branch is not judged again as part of the whole",
			errors.Join(classify.Transient(errStolen), io.EOF), retry, "stolen",
		},
		{"a rule knows the joined error itself", multi{io.EOF, io.EOF, io.EOF}, retryAfter, "multi"},
		{"a rule knows it at a distance", deep(multi{errors.New("?"), nil, nil}, 3), retryAfter, "multi"},
	})
}

func TestFallbackJudgesOnlyTheUnknown(t *testing.T) {
	base := classify.New(is(errStolen, classify.Result{Verdict: drop}))
	c := base.Fallback(all(classify.Result{Verdict: poison, ErrorType: "unknown"}))
	check(t, c, []judged{
		{"unknown", errors.New("?"), poison, "unknown"},
		{"known to a rule", errStolen, drop, "_OTHER"},
		{"known to the standard rules", io.EOF, retry, "eof"},
		{"joined, all known", errors.Join(io.EOF, io.EOF), retry, "eof"},
		{"joined, one unknown", errors.Join(io.EOF, errors.New("?")), poison, "unknown"},
		{"marked", classify.Transient(errors.New("?")), retry, "unknown"},
	})
	check(t, base, []judged{{"the classifier it came from is as before", errors.New("?"), retry, "_OTHER"}})
	var unset *classify.Classifier
	check(t, unset.Fallback(all(classify.Result{Verdict: drop})), []judged{{"fallback of nil", errors.New("?"), drop, "_OTHER"}})
}

func TestAnswersOfRulesAreMadeConsistent(t *testing.T) {
	for _, row := range []struct {
		name         string
		answer, want classify.Result
	}{
		{"no verdict is no answer", classify.Result{ErrorType: "x"}, classify.Result{Verdict: retry, ErrorType: "_OTHER"}},
		{"a verdict that is none is no answer", classify.Result{Verdict: 77}, classify.Result{Verdict: retry, ErrorType: "_OTHER"}},
		{"retry after nothing is retry", classify.Result{Verdict: retryAfter}, classify.Result{Verdict: retry, ErrorType: "_OTHER"}},
		{"a negative delay is none", classify.Result{Verdict: retryAfter, After: -1}, classify.Result{Verdict: retry, ErrorType: "_OTHER"}},
		{"a delay belongs to retry after alone", classify.Result{Verdict: poison, After: 5}, classify.Result{Verdict: poison, ErrorType: "_OTHER"}},
		{"a long name is cut", classify.Result{Verdict: drop, ErrorType: long(65)}, classify.Result{Verdict: drop, ErrorType: long(64)}},
		{
			"a long name is cut between characters",
			classify.Result{Verdict: drop, ErrorType: long(63) + "é"},
			classify.Result{Verdict: drop, ErrorType: long(63)},
		},
	} {
		if got := classify.New(all(row.answer)).Classify(errors.New("?")); got != row.want {
			t.Errorf("%s: a rule says %+v\n got %+v\nwant %+v", row.name, row.answer, got, row.want)
		}
	}
}

func TestRuleThatPanicsHasNotAnswered(t *testing.T) {
	boom := func(error) (classify.Result, bool) { panic("boom") }
	check(t, classify.New(boom, is(io.EOF, classify.Result{Verdict: poison})), []judged{
		{"the next rule is asked", io.EOF, poison, "eof"},
		{"the standard rules are asked", io.ErrNoProgress, retry, "io"},
	})
	check(t, classify.New().Fallback(boom), []judged{{"as a fallback", errStolen, retry, "_OTHER"}})
}

func TestNilRulePanicsWhenTheClassifierIsMade(t *testing.T) {
	for name, make := range map[string]func(){
		"New":      func() { classify.New(classify.Standard, nil) },
		"Fallback": func() { classify.New().Fallback(nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s with a nil rule does not panic", name)
				}
			}()
			make()
		}()
	}
}

func TestRulesDoNotChangeWithTheCallersSlice(t *testing.T) {
	rules := []classify.Rule{is(io.EOF, classify.Result{Verdict: drop})}
	c := classify.New(rules...)
	rules[0] = all(classify.Result{Verdict: poison})
	check(t, c, []judged{{"the slice was changed", io.EOF, drop, "eof"}})
}

func TestStandardCanBeAltered(t *testing.T) {
	c := classify.New(func(err error) (classify.Result, bool) {
		r, ok := classify.Standard(err)
		if r.ErrorType == "http.401" {
			r.Verdict = retry
		}
		return r, ok
	})
	check(t, c, []judged{
		{"altered", deep(&Status{Code: 401}, 2), retry, "http.401"},
		{"as it was", &Status{Code: 404}, poison, "http.404"},
	})
	if r, ok := classify.Standard(errStolen); ok {
		t.Errorf("Standard(unknown) = %+v, true, want false", r)
	}
}

func TestPanics(t *testing.T) {
	check(t, nil, []judged{
		{"a panic", &classify.PanicError{Value: "boom"}, poison, "panic"},
		{"a panic with nil", &classify.PanicError{}, poison, "panic"},
		{"a panic with an error", &classify.PanicError{Value: io.EOF}, poison, "panic"},
		{"a runtime error that was recovered by hand", runtimeError(), poison, "panic"},
		{"a typed nil", (*classify.PanicError)(nil), poison, "panic"},
		{"wrapped", deep(&classify.PanicError{Value: 1}, 3), poison, "panic"},
		{"the panic's value is marked", &classify.PanicError{Value: classify.Drop(errStolen)}, drop, "panic"},
	})
	check(t, classify.New(classify.RetryPanics), []judged{
		{"retried", deep(&classify.PanicError{Value: "boom"}, 3), retry, "panic"},
		{"a runtime error, retried", runtimeError(), retry, "panic"},
		{"joined with poison", errors.Join(&classify.PanicError{Value: 1}, classify.Permanent(errStolen)), poison, "_OTHER"},
		{"no panic", &Status{Code: 400}, poison, "http.400"},
	})
	if got, want := (&classify.PanicError{Value: io.EOF}).Error(), "panic: EOF"; got != want {
		t.Errorf("PanicError{io.EOF}.Error() = %q, want %q", got, want)
	}
	if !errors.Is(&classify.PanicError{Value: io.EOF}, io.EOF) {
		t.Error("PanicError{io.EOF} is not io.EOF")
	}
}

func runtimeError() (err error) {
	defer func() { err = recover().(error) }()
	var m map[string]int
	m["x"] = 1
	return nil
}

func TestClassifierIsSafeForConcurrentUse(t *testing.T) {
	c := classify.New(is(io.EOF, classify.Result{Verdict: drop})).Fallback(all(classify.Result{Verdict: poison}))
	err := errors.Join(deep(io.EOF, 3), &Status{Code: 503}, errStolen)
	want := c.Classify(err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if got := c.Classify(err); got != want {
					t.Errorf("Classify(%v) = %+v, want %+v", err, got, want)
				}
			}
		})
	}
	wg.Wait()
}

// A delay in order is one for whichever error of several asks: the longest delay counts, and the order if any asks for it.
func TestRetryAfterInOrder(t *testing.T) {
	soon, late := classify.RetryAfter(errors.New("a"), time.Second), classify.RetryAfter(errors.New("b"), time.Minute)
	inOrder := classify.RetryAfterInOrder(errors.New("c"), 2*time.Second)
	for _, tc := range []struct {
		name string
		err  error
		want classify.Result
	}{
		{"not asked for", soon, classify.Result{Verdict: retryAfter, After: time.Second, ErrorType: "_OTHER"}},
		{"asked for", fmt.Errorf("x: %w", inOrder), classify.Result{Verdict: retryAfter, After: 2 * time.Second, InOrder: true, ErrorType: "_OTHER"}},
		{"the longer one does not ask", errors.Join(inOrder, late), classify.Result{Verdict: retryAfter, After: time.Minute, InOrder: true, ErrorType: "_OTHER"}},
		{"the shorter one does not ask", errors.Join(soon, inOrder), classify.Result{Verdict: retryAfter, After: 2 * time.Second, InOrder: true, ErrorType: "_OTHER"}},
		{"another verdict", errors.Join(inOrder, classify.Permanent(io.EOF)), classify.Result{Verdict: poison, ErrorType: "eof"}},
		{"marked again", classify.RetryAfter(inOrder, time.Second), classify.Result{Verdict: retryAfter, After: time.Second, ErrorType: "_OTHER"}},
		{"no delay", classify.RetryAfterInOrder(io.EOF, 0), classify.Result{Verdict: retry, ErrorType: "eof"}},
	} {
		if got := new(classify.Classifier).Classify(tc.err); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", tc.name, got, tc.want)
		}
	}
	if err := classify.RetryAfterInOrder(nil, time.Second); err != nil {
		t.Errorf("of nil: %v, want nil", err)
	}
}
