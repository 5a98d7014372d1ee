package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
)

// attempts runs a handler that fails as errs say, one after the other and then with the last one, or
// succeeds where it is nil. It returns when each attempt began, since the first.
func attempts(t *testing.T, c middleware.RetryConfig, errs ...error) ([]time.Duration, error) {
	t.Helper()
	var at []time.Duration
	start := time.Now()
	_, err := mustRetry(t, c)(func(*message.Message) ([]*message.Message, error) {
		at = append(at, time.Since(start))
		return nil, errs[min(len(at), len(errs))-1]
	})(newMessage(t.Context(), "1"))
	return at, err
}

func TestRetrySchedule(t *testing.T) {
	const ms = time.Millisecond
	exact := middleware.RetryConfig{Jitter: middleware.NoJitter}
	with := func(change func(*middleware.RetryConfig)) middleware.RetryConfig {
		c := exact
		change(&c)
		return c
	}
	busy := func(d time.Duration) error { return fmt.Errorf("charge: %w", classify.RetryAfter(errDown, d)) }
	tests := []struct {
		name    string
		config  middleware.RetryConfig
		errs    []error
		at      []time.Duration
		verdict classify.Verdict // VerdictNone: succeeds
	}{
		{"success at once", exact, []error{nil}, []time.Duration{0}, classify.VerdictNone},
		{"success at the third", exact, []error{errDown, errDown, nil}, []time.Duration{0, 100 * ms, 300 * ms}, classify.VerdictNone},
		{"default attempts", exact, []error{errDown}, []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms}, classify.VerdictRetry},
		{"one attempt", with(func(c *middleware.RetryConfig) { c.MaxAttempts = 1 }), []error{errDown}, []time.Duration{0}, classify.VerdictRetry},
		{
			"the longest delay", with(func(c *middleware.RetryConfig) { c.MaxDelay = 150 * ms }),
			[]error{errDown},
			[]time.Duration{0, 100 * ms, 250 * ms, 400 * ms, 550 * ms},
			classify.VerdictRetry,
		},
		{
			"multiplier 1", with(func(c *middleware.RetryConfig) { c.Multiplier = 1 }),
			[]error{errDown},
			[]time.Duration{0, 100 * ms, 200 * ms, 300 * ms, 400 * ms},
			classify.VerdictRetry,
		},
		{
			"time is up before attempts are", with(func(c *middleware.RetryConfig) { c.MaxElapsed = 700 * ms }),
			[]error{errDown},
			[]time.Duration{0, 100 * ms, 300 * ms, 700 * ms},
			classify.VerdictRetry,
		},
		{
			"a delay that ends too late is not begun", with(func(c *middleware.RetryConfig) { c.MaxElapsed = 699 * ms }),
			[]error{errDown},
			[]time.Duration{0, 100 * ms, 300 * ms},
			classify.VerdictRetry,
		},
		{
			"no limit of time", with(func(c *middleware.RetryConfig) { c.MaxElapsed = middleware.NoLimit }),
			[]error{errDown},
			[]time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms},
			classify.VerdictRetry,
		},
		{"poison", exact, []error{classify.Permanent(errDown)}, []time.Duration{0}, classify.VerdictPoison},
		{"poison at the second", exact, []error{errDown, classify.Permanent(errDown)}, []time.Duration{0, 100 * ms}, classify.VerdictPoison},
		{"drop", exact, []error{classify.Drop(errDown)}, []time.Duration{0}, classify.VerdictDrop},
		{"the delay that the error asks for", exact, []error{busy(3 * time.Second), nil}, []time.Duration{0, 3 * time.Second}, classify.VerdictNone},
		{"a shorter one than the backoff's", exact, []error{busy(ms), nil}, []time.Duration{0, ms}, classify.VerdictNone},
		{"a longer one than MaxDelay", exact, []error{busy(time.Minute), nil}, []time.Duration{0, time.Minute}, classify.VerdictNone},
		{"an asked delay is no step of the backoff", exact, []error{busy(ms), errDown, nil}, []time.Duration{0, ms, 101 * ms}, classify.VerdictNone},
		{
			"asked delays use up attempts", with(func(c *middleware.RetryConfig) { c.MaxAttempts = 3 }),
			[]error{busy(ms)},
			[]time.Duration{0, ms, 2 * ms},
			classify.VerdictRetryAfter,
		},
		{"an asked delay beyond MaxRetryAfter", exact, []error{busy(5*time.Minute + 1)}, []time.Duration{0}, classify.VerdictRetryAfter},
		{
			"an asked delay beyond MaxElapsed", with(func(c *middleware.RetryConfig) { c.MaxElapsed = time.Minute }),
			[]error{busy(time.Minute + 1)},
			[]time.Duration{0},
			classify.VerdictRetryAfter,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				at, err := attempts(t, test.config, test.errs...)
				if !slices.Equal(at, test.at) {
					t.Errorf("attempts at %v, want %v", at, test.at)
				}
				if test.verdict == classify.VerdictNone {
					if err != nil {
						t.Errorf("error %v, want none", err)
					}
					return
				}
				fail := gaveUp(t, err)
				if fail.Verdict != test.verdict || fail.Attempts != len(test.at) {
					t.Errorf("gave up by %v after %d attempts, want %v after %d", fail.Verdict, fail.Attempts, test.verdict, len(test.at))
				}
				if took := fail.LastFailure.Sub(fail.FirstFailure); took != test.at[len(test.at)-1] {
					t.Errorf("last failure %v after the first, want %v", took, test.at[len(test.at)-1])
				}
				if !errors.Is(err, errDown) {
					t.Errorf("error %v does not wrap the handler's", err)
				}
			})
		})
	}
}

// Two records of one partition always failed and were handled at the same moment. They shared the state of
// the retries: one was neither retried nor dead-lettered.
func TestR1MessagesDoNotShareTheirRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu    sync.Mutex
			calls = map[string][]time.Duration{}
			start = time.Now()
			wait  sync.WaitGroup
		)
		h := mustRetry(t, middleware.RetryConfig{MaxAttempts: 3, Jitter: middleware.NoJitter})(
			func(msg *message.Message) ([]*message.Message, error) {
				mu.Lock()
				defer mu.Unlock()
				calls[msg.UUID] = append(calls[msg.UUID], time.Since(start))
				return nil, errDown
			})
		const messages = 50
		for i := range messages {
			wait.Go(func() {
				if _, err := h(newMessage(t.Context(), fmt.Sprint(i))); gaveUp(t, err).Attempts != 3 {
					t.Errorf("message %d: %v, want it given up after 3 attempts", i, err)
				}
			})
		}
		wait.Wait()
		want := []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond}
		for i := range messages {
			if got := calls[fmt.Sprint(i)]; !slices.Equal(got, want) {
				t.Errorf("message %d: attempts at %v, want %v", i, got, want)
			}
		}
	})
}

// The process was killed before the last attempt and the message came again: its count began anew. Here that
// is said, and is what the count means: the attempts of this delivery in this process.
func TestR5CountCoversOneDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []int
		h := mustRetry(t, middleware.RetryConfig{MaxAttempts: 2})(func(msg *message.Message) ([]*message.Message, error) {
			seen = append(seen, middleware.Attempt(msg.Context()))
			return nil, errDown
		})
		for range 2 { // two deliveries of one message
			if _, err := h(newMessage(t.Context(), "1")); gaveUp(t, err).Attempts != 2 {
				t.Errorf("%v, want it given up after 2 attempts", err)
			}
		}
		if want := []int{1, 2, 1, 2}; !slices.Equal(seen, want) {
			t.Errorf("attempts seen by the handler: %v, want %v", seen, want)
		}
	})
}

// A hook asked the backoff for the delay, which moved it on: 10 ms were reported and 20 slept.
func TestR6ReportedDelayIsSleptDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported, slept []time.Duration
		var failed time.Time
		h := mustRetry(t, middleware.RetryConfig{
			MaxAttempts: 20,
			OnRetry: func(_ context.Context, e middleware.RetryEvent) {
				reported = append(reported, e.Delay)
				if e.Attempt != len(reported) || !errors.Is(e.Err, errDown) || e.Verdict != classify.VerdictRetry || e.ErrorType == "" {
					t.Errorf("event %d is %+v", len(reported), e)
				}
			},
		})(func(*message.Message) ([]*message.Message, error) {
			if !failed.IsZero() {
				slept = append(slept, time.Since(failed))
			}
			time.Sleep(7 * time.Millisecond)
			failed = time.Now()
			return nil, errDown
		})
		_, err := h(newMessage(t.Context(), "1"))
		_ = gaveUp(t, err)
		if len(reported) != 19 || !slices.Equal(reported, slept) {
			t.Errorf("reported %v\nslept    %v\nwant 19 equal ones", reported, slept)
		}
		for i, d := range reported {
			if d > 30*time.Second {
				t.Errorf("delay %d is %v, over MaxDelay", i, d)
			}
		}
	})
}

func TestJitterSpreadsTheFirstDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		distinct := map[time.Duration]bool{}
		for range 200 {
			at, err := attempts(t, middleware.RetryConfig{MaxAttempts: 2}, errDown)
			_ = gaveUp(t, err)
			if at[1] < 50*time.Millisecond-1 || at[1] > 150*time.Millisecond {
				t.Fatalf("first delay %v, want 50 to 150 ms", at[1])
			}
			distinct[at[1]] = true
		}
		if len(distinct) < 100 {
			t.Errorf("%d different delays of 200: no jitter", len(distinct))
		}
	})
}

// Invariant I5: a shutdown is no failure.
func TestContextEndIsNoFailure(t *testing.T) {
	poison := func(context.Context) error { return classify.Permanent(errDown) }
	tests := []struct {
		name   string
		after  time.Duration // when the message's context ends
		err    func(context.Context) error
		ended  time.Duration // when Retry returned
		counts int           // attempts counted
	}{
		{"before the first attempt", 0, poison, 0, 0},
		{"while the handler runs", 500 * time.Millisecond, poison, time.Second, 0},
		{
			"and it returns the context's error", 500 * time.Millisecond,
			func(ctx context.Context) error { return errors.Join(errDown, ctx.Err()) }, time.Second, 0,
		},
		{"during the delay", 1050 * time.Millisecond, func(context.Context) error { return errDown }, 1050 * time.Millisecond, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				cause := errors.New("drain limit")
				if test.after == 0 {
					cancel(cause)
				} else {
					time.AfterFunc(test.after, func() { cancel(cause) })
				}
				ran := false
				msg := newMessage(ctx, "1")
				_, err := mustRetry(t, middleware.RetryConfig{Jitter: middleware.NoJitter})(
					func(msg *message.Message) ([]*message.Message, error) {
						ran = true
						time.Sleep(time.Second)
						return []*message.Message{newMessage(ctx, "output")}, test.err(msg.Context())
					})(msg)
				if !isStop(err) {
					t.Errorf("error %v, want a stop", err)
				}
				if _, ok := errors.AsType[*middleware.GaveUpError](err); ok {
					t.Errorf("error %v says that Retry gave up", err)
				}
				if want := map[bool]error{true: errDown, false: cause}[ran]; !errors.Is(err, want) {
					t.Errorf("error %v does not wrap %v", err, want)
				}
				if got := time.Since(start); got != test.ended {
					t.Errorf("returned after %v, want %v", got, test.ended)
				}
				if got := flight.From(msg.Context()).Attempt; got != test.counts {
					t.Errorf("%d attempts are counted, want %d", got, test.counts)
				}
			})
		})
	}
}

// The backoff that we use may go over its range by a nanosecond; a budget that is exact would be too small.
func TestJitterStaysInItsRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := middleware.RetryConfig{MaxAttempts: 5000, InitialDelay: 15, Multiplier: 1, MaxRetryAfter: 1, Jitter: 0.1}
		c.OnRetry = func(_ context.Context, e middleware.RetryEvent) {
			if e.Delay < 12 || e.Delay > 16 {
				t.Errorf("delay %d is %v, want 12 to 16 ns", e.Attempt, e.Delay)
			}
		}
		_, err := attempts(t, c, errDown)
		_ = gaveUp(t, err)
	})
}

func TestStopVerdictEndsRetriesUncounted(t *testing.T) {
	rule := classify.New(func(err error) (classify.Result, bool) {
		return classify.Result{Verdict: classify.VerdictStop}, errors.Is(err, errDown)
	})
	msg := newMessage(t.Context(), "1")
	_, err := mustRetry(t, middleware.RetryConfig{Classifier: rule})(
		func(*message.Message) ([]*message.Message, error) { return nil, errDown })(msg)
	if !isStop(err) || !errors.Is(err, errDown) {
		t.Errorf("error %v, want errDown marked as a stop", err)
	}
	if got := middleware.Attempt(msg.Context()); got != 0 {
		t.Errorf("%d attempts are counted, want 0", got)
	}
}

func TestSuccessAfterTheContextEndedIsSuccess(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out, err := mustRetry(t, middleware.RetryConfig{})(func(*message.Message) ([]*message.Message, error) {
		cancel()
		return []*message.Message{newMessage(ctx, "output")}, nil
	})(newMessage(ctx, "1"))
	if err != nil || len(out) != 1 {
		t.Errorf("got %d outputs and error %v, want 1 and none", len(out), err)
	}
}

// Invariant I4: a failed attempt leaves nothing.
func TestEachAttemptGetsTheMessageAsItCame(t *testing.T) {
	type contextKey struct{}
	synctest.Test(t, func(t *testing.T) {
		for _, metadata := range []message.Metadata{nil, {}, {"ce_type": "order.placed", "retries": "0"}} {
			msg := newMessage(t.Context(), "1")
			msg.Metadata = metadata
			want := maps.Clone(metadata)
			runs := 0
			out, err := mustRetry(t, middleware.RetryConfig{MaxAttempts: 3})(func(msg *message.Message) ([]*message.Message, error) {
				runs++
				f := flight.From(msg.Context())
				if !maps.Equal(msg.Metadata, want) || (msg.Metadata == nil) != (want == nil) {
					t.Errorf("attempt %d: metadata %v, want %v", runs, msg.Metadata, want)
				}
				if msg.UUID != "1" || string(msg.Payload) != `{"total":12}` {
					t.Errorf("attempt %d: id %q, payload %q", runs, msg.UUID, msg.Payload)
				}
				if v := msg.Context().Value(contextKey{}); v != nil || msg.Context().Err() != nil {
					t.Errorf("attempt %d: the context is another attempt's: value %v, error %v", runs, v, msg.Context().Err())
				}
				if f.Receipt() != flight.NoReceipt || f.NextOutput() != 1 {
					t.Errorf("attempt %d: receipt %v or count of outputs are another attempt's", runs, f.Receipt())
				}
				ctx, cancel := context.WithCancel(context.WithValue(msg.Context(), contextKey{}, runs))
				cancel()
				flight.Give(ctx, flight.Handled)
				msg.SetContext(ctx)
				if msg.Metadata == nil {
					msg.Metadata = message.Metadata{}
				}
				msg.Metadata["retries"], msg.Metadata["junk"] = fmt.Sprint(runs), "x"
				msg.UUID, msg.Payload = "other", []byte("other")
				return []*message.Message{newMessage(t.Context(), fmt.Sprint("output of ", runs))}, errDown
			})(msg)
			if fail := gaveUp(t, err); fail.Attempts != 3 || runs != 3 {
				t.Errorf("%d runs and %v, want 3", runs, err)
			}
			if out != nil {
				t.Errorf("outputs %v of failed attempts are returned", out)
			}
			if !maps.Equal(msg.Metadata, want) || msg.UUID != "1" || msg.Context().Err() != nil {
				t.Errorf("outside: metadata %v, id %q, context %v: want the message as it came", msg.Metadata, msg.UUID, msg.Context().Err())
			}
		}
	})
}

func TestOnlyTheSuccessfulAttemptsOutputsAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		msg := newMessage(t.Context(), "1")
		out, err := mustRetry(t, middleware.RetryConfig{})(func(msg *message.Message) ([]*message.Message, error) {
			runs++
			msg.Metadata.Set("run", fmt.Sprint(runs))
			outputs := []*message.Message{newMessage(t.Context(), fmt.Sprint("output of ", runs))}
			if runs < 3 {
				return outputs, errDown
			}
			return outputs, nil
		})(msg)
		if err != nil || len(out) != 1 || out[0].UUID != "output of 3" {
			t.Errorf("got %v and error %v, want the output of run 3", message.Messages(out).IDs(), err)
		}
		if got := msg.Metadata.Get("run"); got != "3" {
			t.Errorf("metadata run is %q: the successful handler's own write is undone", got)
		}
	})
}

// A goroutine that a handler left behind still had the metadata of its attempt: writing into the map that the
// next attempt read ended the process.
func TestMetadataOfAFailedAttemptIsNotUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		msg := newMessage(t.Context(), "1")
		msg.Metadata.Set("a", "b")
		var before message.Metadata
		_, err := mustRetry(t, middleware.RetryConfig{MaxAttempts: 2})(func(msg *message.Message) ([]*message.Message, error) {
			if before == nil {
				before = msg.Metadata
				return nil, errDown
			}
			before["a"] = "written late"
			if got := msg.Metadata.Get("a"); got != "b" {
				t.Errorf("the second attempt's metadata is the first one's map: a is %q", got)
			}
			return nil, nil
		})(msg)
		if err != nil {
			t.Error(err)
		}
	})
}

func TestGaveUpErrorText(t *testing.T) {
	for _, test := range []struct {
		err  middleware.GaveUpError
		want string
	}{
		{middleware.GaveUpError{Verdict: classify.VerdictPoison, Attempts: 1, Err: errDown}, "gave up after 1 attempt (poison): warehouse is down"},
		{middleware.GaveUpError{Verdict: classify.VerdictRetryAfter, Attempts: 5, Err: errDown}, "gave up after 5 attempts (retry_after): warehouse is down"},
	} {
		if got := test.err.Error(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

func TestAttemptIsZeroWithoutRetry(t *testing.T) {
	if got := middleware.Attempt(t.Context()); got != 0 {
		t.Errorf("got %d, want 0", got)
	}
}
