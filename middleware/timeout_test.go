package middleware_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/middleware"
)

// waitOrDone is a handler that takes d, or as long as its context lets it.
func waitOrDone(d time.Duration) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		select {
		case <-msg.Context().Done():
			return nil, msg.Context().Err()
		case <-time.After(d):
			return nil, nil
		}
	}
}

// A timeout middleware left its dead context in the message: the second attempt and all others failed at
// once.
func TestR7EachAttemptHasItsWholeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took []time.Duration
		retry := mustRetry(t, middleware.RetryConfig{MaxAttempts: 3})
		_, err := retry(func(msg *message.Message) ([]*message.Message, error) {
			start := time.Now()
			defer func() { took = append(took, time.Since(start)) }()
			return middleware.Timeout(time.Second)(waitOrDone(time.Hour))(msg)
		})(newMessage(t.Context(), "1"))
		for _, d := range took {
			if d != time.Second {
				t.Errorf("attempts took %v, want 1s each", took)
			}
		}
		fail := gaveUp(t, err)
		if fail.Attempts != 3 || fail.Verdict != classify.VerdictRetry || fail.ErrorType != "timeout" {
			t.Errorf("gave up with %+v, want 3 attempts, retry, timeout", fail)
		}
	})
}

// A handler that had timed out went on while its lane did too: two messages of a key ran at once.
func TestR8TimedOutHandlerIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, err := middleware.Timeout(time.Second)(func(msg *message.Message) ([]*message.Message, error) {
			time.Sleep(time.Minute) // ignores its context
			return nil, msg.Context().Err()
		})(newMessage(t.Context(), "1"))
		if got := time.Since(start); got != time.Minute {
			t.Errorf("Timeout returned after %v, want 1m: the handler is still running", got)
		}
		timeout, ok := errors.AsType[*middleware.TimeoutError](err)
		if !ok || timeout.Limit != time.Second || timeout.Took != time.Minute || !timeout.Timeout() {
			t.Fatalf("error %v, want a TimeoutError with limit and time taken", err)
		}
		if text := err.Error(); !strings.Contains(text, "1s") || !strings.Contains(text, "1m0s") {
			t.Errorf("error %q names not both times", text)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v does not wrap the context's", err)
		}
	})
}

func TestTimeoutOutcomes(t *testing.T) {
	fails := func(err error) message.HandlerFunc {
		return func(*message.Message) ([]*message.Message, error) {
			time.Sleep(2 * time.Second)
			return nil, err
		}
	}
	tests := []struct {
		name    string
		handler message.HandlerFunc
		outer   time.Duration // when the message's own context ends; 0: never
		is      error         // nil: success
		timeout bool          // is a TimeoutError
	}{
		{"in time", waitOrDone(time.Millisecond), 0, nil, false},
		{"late but well", fails(nil), 0, nil, false},
		{"late with an error of its own", fails(errDown), 0, errDown, false},
		{"a library that says canceled", fails(context.Canceled), 0, context.Canceled, true},
		{"the message ended first", waitOrDone(time.Hour), time.Millisecond, context.Canceled, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if test.outer > 0 {
					time.AfterFunc(test.outer, cancel)
				}
				msg := newMessage(ctx, "1")
				_, err := middleware.Timeout(time.Second)(test.handler)(msg)
				if !errors.Is(err, test.is) {
					t.Errorf("error %v, want %v", err, test.is)
				}
				if _, ok := errors.AsType[*middleware.TimeoutError](err); ok != test.timeout {
					t.Errorf("error %v is a TimeoutError: %v, want %v", err, ok, test.timeout)
				}
				if msg.Context() != ctx {
					t.Error("the message's context was not put back")
				}
			})
		})
	}
}

func TestTimeoutPutsTheContextBackAfterAPanic(t *testing.T) {
	ctx := t.Context()
	msg := newMessage(ctx, "1")
	func() {
		defer func() { _ = recover() }()
		_, _ = middleware.Timeout(time.Hour)(func(*message.Message) ([]*message.Message, error) { panic("bug") })(msg)
	}()
	if msg.Context() != ctx {
		t.Error("the message's context was not put back")
	}
}

func TestTimeoutRefusesALimitThatIsNone(t *testing.T) {
	defer func() {
		if got, _ := recover().(string); !strings.Contains(got, "-1s") {
			t.Errorf("panic %q, want one with the value", got)
		}
	}()
	middleware.Timeout(-time.Second)
}
