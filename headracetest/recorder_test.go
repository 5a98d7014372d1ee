package headracetest_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/headrace-go/headrace/headracetest"
)

// recorder is a test that may fail: it keeps what it was told. What it does not override is the real test's.
type recorder struct {
	testing.TB

	mu     sync.Mutex
	errors []string
	logs   []string
}

func (r *recorder) add(to *[]string, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*to = append(*to, text)
}

func (r *recorder) Helper()                           {}
func (r *recorder) Log(args ...any)                   { r.add(&r.logs, fmt.Sprint(args...)) }
func (r *recorder) Logf(format string, args ...any)   { r.add(&r.logs, fmt.Sprintf(format, args...)) }
func (r *recorder) Error(args ...any)                 { r.add(&r.errors, fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.add(&r.errors, fmt.Sprintf(format, args...)) }
func (r *recorder) Fail()                             { r.add(&r.errors, "Fail") }
func (r *recorder) FailNow()                          { r.add(&r.errors, "FailNow"); runtime.Goexit() }
func (r *recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.errors) > 0
}

// told is all that the test was told, errors and logs.
func (r *recorder) told() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(append(append([]string(nil), r.errors...), r.logs...), "\n")
}

// record runs f as a test that may fail and end early.
func record(t testing.TB, f func(testing.TB)) *recorder {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r
}

// verdicts is what Consumer reported: of each subtest by its guarantee, and of the test itself.
type verdicts struct {
	whole *recorder
	parts map[headracetest.Guarantee]*recorder
}

// judge runs Consumer on spec: all of it, or the subtests of those guarantees alone, as "go test -run" does.
func judge(t testing.TB, spec headracetest.Spec, only ...headracetest.Guarantee) verdicts {
	t.Helper()
	v := verdicts{parts: map[headracetest.Guarantee]*recorder{}}
	v.whole = record(t, func(whole testing.TB) {
		headracetest.ConsumerOf(whole, spec, func(name string, f func(testing.TB)) {
			if len(only) > 0 && !slices.Contains(only, headracetest.Guarantee(name)) {
				return
			}
			v.parts[headracetest.Guarantee(name)] = record(t, f)
		})
	})
	return v
}

// broken are the guarantees whose subtests failed.
func (v verdicts) broken() (all []headracetest.Guarantee) {
	for _, g := range headracetest.Guarantees() {
		if p := v.parts[g]; p != nil && p.Failed() {
			all = append(all, g)
		}
	}
	return all
}
