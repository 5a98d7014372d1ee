package middleware_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/middleware"
)

// badStringer panics when it is asked what it is.
type badStringer struct{}

func (badStringer) String() string { panic("no words") }

func TestRecoverTakesAnyPanic(t *testing.T) {
	var (
		nilMap  map[string]int
		nilPath *os.PathError
		index   = 3
	)
	tests := []struct {
		name  string
		panic func()
		check func(value any) bool
		text  string // in the error
	}{
		{"a string", func() { panic("bug") }, func(v any) bool { return v == "bug" }, "panic: bug"},
		{"an error", func() { panic(errDown) }, func(v any) bool { return v == errDown }, "warehouse is down"},
		{"a typed nil error", func() { panic(nilPath) }, func(v any) bool { return v == nilPath }, "panic: "},
		{"a struct", func() { panic(struct{ A int }{7}) }, func(v any) bool { return v == struct{ A int }{7} }, "{7}"},
		{"no words", func() { panic(badStringer{}) }, func(v any) bool { return v == badStringer{} }, "panic: "},
		{"nil", func() { panic(nil) }, func(v any) bool { _, ok := v.(*runtime.PanicNilError); return ok }, "nil"},
		{"a nil map", func() { nilMap["a"] = 1 }, isRuntimeError, "nil map"},
		{"a nil pointer", func() { _ = *nilPath }, isRuntimeError, "nil pointer"},
		{"an index", func() { _ = []int{}[index] }, isRuntimeError, "out of range"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := middleware.Recover()(func(*message.Message) ([]*message.Message, error) {
				defer func() {}()
				test.panic()
				return []*message.Message{newMessage(t.Context(), "output")}, nil
			})
			var inner error // what a stage between two Recovers sees
			_, _ = middleware.Recover()(func(msg *message.Message) ([]*message.Message, error) {
				_, inner = h(msg)
				return nil, inner
			})(newMessage(t.Context(), "1"))
			if _, ok := errors.AsType[*classify.PanicError](inner); !ok {
				t.Errorf("the inner one of two Recovers gives %v, want a PanicError", inner)
			}
			out, err := h(newMessage(t.Context(), "1"))
			if out != nil {
				t.Errorf("outputs %v, want none", out)
			}
			panicked, ok := errors.AsType[*classify.PanicError](err)
			if !ok {
				t.Fatalf("error is %T (%v), want a *classify.PanicError", err, err)
			}
			if !test.check(panicked.Value) {
				t.Errorf("value is %#v", panicked.Value)
			}
			if !strings.Contains(err.Error(), test.text) {
				t.Errorf("error %q, want one with %q", err, test.text)
			}
			if !strings.Contains(string(panicked.Stack), "TestRecoverTakesAnyPanic") {
				t.Errorf("the stack does not name the handler:\n%s", panicked.Stack)
			}
		})
	}
}

func isRuntimeError(v any) bool { _, ok := v.(runtime.Error); return ok }

// A program with an old go.mod has GODEBUG=panicnil=1: recover gives nil for a panic of nil, which then looks
// like no panic at all.
func TestRecoverTakesANilPanicOfOldPrograms(t *testing.T) {
	t.Setenv("GODEBUG", "panicnil=1")
	inner := middleware.Recover()(func(*message.Message) ([]*message.Message, error) { panic(nil) })
	msg := newMessage(t.Context(), "1")
	_, alone := inner(msg)
	_, nested := middleware.Recover()(inner)(newMessage(t.Context(), "2"))
	for _, err := range []error{alone, nested} {
		if _, ok := errors.AsType[*classify.PanicError](err); !ok {
			t.Errorf("error is %T (%v), want a *classify.PanicError", err, err)
		}
	}
}

func TestRecoverBoundsTheStack(t *testing.T) {
	var deep func(int)
	deep = func(n int) {
		if n == 0 {
			panic("deep down")
		}
		deep(n - 1)
	}
	_, err := middleware.Recover()(func(*message.Message) ([]*message.Message, error) {
		deep(10_000)
		return nil, nil
	})(newMessage(t.Context(), "1"))
	panicked, ok := errors.AsType[*classify.PanicError](err)
	if !ok || len(panicked.Stack) != middleware.MaxStack {
		t.Fatalf("error %v, want a PanicError with %d bytes of stack", err, middleware.MaxStack)
	}
}

func TestRecoverLetsResultsThrough(t *testing.T) {
	for _, want := range []error{nil, errDown} {
		out, err := middleware.Recover()(func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{newMessage(t.Context(), "output")}, want
		})(newMessage(t.Context(), "1"))
		if len(out) != 1 || !errors.Is(err, want) {
			t.Errorf("got %d outputs and error %v, want 1 and %v", len(out), err, want)
		}
	}
}

// exits runs h in a goroutine of its own and tells whether that ended by Goexit.
func exits(h message.HandlerFunc, msg *message.Message) (exited bool, err error) {
	done := make(chan struct{})
	exited = true
	go func() {
		defer close(done)
		_, err = h(msg)
		exited = false
	}()
	<-done
	return exited, err
}

func isAcked(msg *message.Message) bool  { return isClosed(msg.Acked()) }
func isNacked(msg *message.Message) bool { return isClosed(msg.Nacked()) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A handler called testing.T.FailNow, and so runtime.Goexit. No stage returned; the message was neither acked
// nor nacked, and its lane was never free again.
func TestGoexitBecomesAnErrorBetweenTwoRecovers(t *testing.T) {
	tests := []struct {
		name    string
		handled func(error) ([]*message.Message, error) // what a stage in between makes of the error
		acked   bool
	}{
		{"a stage deals with it", func(error) ([]*message.Message, error) { return nil, nil }, true},
		{"no stage does", func(err error) ([]*message.Message, error) { return nil, err }, false},
		{"outputs cannot be published any more", func(error) ([]*message.Message, error) {
			return []*message.Message{newMessage(context.Background(), "output")}, nil
		}, false},
		{"a stage panics", func(error) ([]*message.Message, error) { panic("stage") }, false},
		{"a stage exits too", func(error) ([]*message.Message, error) { runtime.Goexit(); return nil, nil }, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			runs, seen := 0, []error(nil)
			stage := func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					out, err := h(msg)
					if err == nil {
						return out, nil
					}
					seen = append(seen, err)
					return test.handled(err)
				}
			}
			chain := middleware.Recover()(stage(mustRetry(t, middleware.RetryConfig{Classifier: classify.New(classify.RetryPanics)})(
				middleware.Recover()(func(msg *message.Message) ([]*message.Message, error) {
					runs++
					msg.Metadata.Set("junk", "x")
					msg.SetContext(context.Background())
					runtime.Goexit()
					return nil, nil
				}))))
			msg := newMessage(t.Context(), "1")
			exited, _ := exits(chain, msg)
			if !exited || runs != 1 {
				t.Errorf("the goroutine ended by Goexit: %v, want true; %d runs of the handler, want 1", exited, runs)
			}
			if len(seen) != 1 || !errors.Is(seen[0], middleware.ErrGoexit) {
				t.Fatalf("the stage saw %v, want ErrGoexit, once", seen)
			}
			if fail := gaveUp(t, seen[0]); fail.Attempts != 1 || fail.FirstFailure.IsZero() {
				t.Errorf("gave up with %+v, want 1 attempt", fail)
			}
			if isAcked(msg) != test.acked || isNacked(msg) == test.acked {
				t.Errorf("acked %v, nacked %v: want acked %v and the other not", isAcked(msg), isNacked(msg), test.acked)
			}
			if got := msg.Metadata.Get("junk"); got != "" {
				t.Error("the handler's metadata is still there")
			}
		})
	}
}

func TestGoexitAfterTheContextEndedIsNoFailure(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var seen error
	stage := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			_, seen = h(msg)
			return nil, seen
		}
	}
	exits(middleware.Recover()(stage(mustRetry(t, middleware.RetryConfig{})(middleware.Recover()(
		func(*message.Message) ([]*message.Message, error) {
			cancel()
			runtime.Goexit()
			return nil, nil
		})))), newMessage(ctx, "1"))
	if !isStop(seen) || !errors.Is(seen, middleware.ErrGoexit) {
		t.Errorf("the stage saw %v, want ErrGoexit marked as a stop", seen)
	}
}

func TestGoexitNacksWhereRecoverStandsAlone(t *testing.T) {
	msg := newMessage(t.Context(), "1")
	h := middleware.Recover()(func(*message.Message) ([]*message.Message, error) { runtime.Goexit(); return nil, nil })
	if exited, _ := exits(h, msg); !exited || !isNacked(msg) {
		t.Errorf("exited %v, nacked %v, want both", exited, isNacked(msg))
	}
	// The next deliveries, which may come with the same context, are treated the same, also after one that
	// went well.
	ok := middleware.Recover()(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	for range 2 {
		again := newMessage(msg.Context(), "1")
		if exits(h, again); !isNacked(again) {
			t.Error("a later delivery was not nacked")
		}
		if _, err := ok(newMessage(msg.Context(), "1")); err != nil {
			t.Error(err)
		}
	}
}

func TestOuterRecoverTakesAPanicOfAStage(t *testing.T) {
	stage := func(message.HandlerFunc) message.HandlerFunc {
		return func(*message.Message) ([]*message.Message, error) { panic("stage") }
	}
	_, err := middleware.Recover()(stage(middleware.Recover()(nil)))(newMessage(t.Context(), "1"))
	if _, ok := errors.AsType[*classify.PanicError](err); !ok {
		t.Errorf("error %v, want a PanicError", err)
	}
}

// After a nil panic of an old program the inner Recover had noted a Goexit that never was. A later Goexit of
// the same delivery must be its own.
func TestNilPanicThenGoexit(t *testing.T) {
	t.Setenv("GODEBUG", "panicnil=1")
	var seen error
	runs := 0
	stage := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			_, seen = h(msg)
			return nil, nil
		}
	}
	retry := mustRetry(t, middleware.RetryConfig{InitialDelay: 1, MaxDelay: 1, Classifier: classify.New(classify.RetryPanics)})
	msg := newMessage(t.Context(), "1")
	exits(middleware.Recover()(stage(retry(middleware.Recover()(func(*message.Message) ([]*message.Message, error) {
		if runs++; runs == 1 {
			panic(nil)
		}
		runtime.Goexit()
		return nil, nil
	})))), msg)
	if fail := gaveUp(t, seen); fail.Attempts != 2 || runs != 2 || !isAcked(msg) {
		t.Errorf("%d runs, %+v, acked %v: want 2 runs and attempts, and an ack", runs, fail, isAcked(msg))
	}
}
