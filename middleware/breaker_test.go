package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
)

func TestBreakerConfigIsChecked(t *testing.T) {
	type config = middleware.BreakerConfig
	guard := func(g middleware.DeadLetterGuard) config { return config{Guard: g} }
	for _, test := range []struct {
		config config
		want   string // in the error; "": it is right
	}{
		{config{}, ""},
		{config{Off: true}, ""},
		{config{MaxProbeDelay: time.Millisecond}, ""},
		{config{ProbeDelay: time.Hour}, ""},
		{config{Keys: 1}, "Keys is 1"},
		{config{After: -time.Second}, "After is -1s"},
		{config{ProbeDelay: -time.Second}, "ProbeDelay is -1s"},
		{config{ProbeDelay: time.Second, MaxProbeDelay: time.Millisecond}, "MaxProbeDelay is 1ms: want at least ProbeDelay, 1s"},
		{config{Ramp: -1}, "Ramp is -1"},
		{guard(middleware.DeadLetterGuard{Share: 1}), "Guard.Share is 1"},
		{guard(middleware.DeadLetterGuard{Share: math.NaN()}), "Guard.Share is NaN"},
		{guard(middleware.DeadLetterGuard{Outcomes: 99}), "Guard.Outcomes is 99"},
		{guard(middleware.DeadLetterGuard{PerMinute: -1}), "Guard.PerMinute is -1"},
		{guard(middleware.DeadLetterGuard{Pause: -time.Second}), "Guard.Pause is -1s"},
		{guard(middleware.DeadLetterGuard{Pause: time.Second, MaxPause: time.Millisecond}), "Guard.MaxPause is 1ms"},
	} {
		b, err := middleware.NewBreaker(test.config, nil, nil)
		switch {
		case test.want == "" && (err != nil || b == nil):
			t.Errorf("%+v: error %v, want none", test.config, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), "middleware.BreakerConfig."+test.want)):
			t.Errorf("%+v: error %v, want one with %q", test.config, err, test.want)
		}
	}
}

// gate is an intake that only remembers.
type gate struct {
	mu     sync.Mutex
	paused string
	events []string
}

func (g *gate) Pause(reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused = reason
	g.events = append(g.events, "pause")
}

func (g *gate) Resume(reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if reason == g.paused {
		g.events = append(g.events, "resume")
	}
}

func (g *gate) Allow(string, int) {}

// service is a dependency and the breaker of its consumer.
type service struct {
	t       *testing.T
	breaker *middleware.Breaker
	gate    gate
	changes []string
	handle  message.HandlerFunc

	down  atomic.Bool
	spare atomic.Int64 // calls that succeed although it is down
	calls atomic.Int64
}

func newService(t *testing.T, b middleware.BreakerConfig, r middleware.RetryConfig) *service {
	s := &service{t: t}
	var err error
	s.breaker, err = middleware.NewBreaker(b, &s.gate, func(c middleware.BreakerChange) {
		s.changes = append(s.changes, fmt.Sprintf("%v to %v", c.From, c.To))
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Breaker = s.breaker
	s.handle = mustRetry(t, r)(func(*message.Message) ([]*message.Message, error) {
		s.calls.Add(1)
		time.Sleep(time.Millisecond)
		if s.down.Load() && s.spare.Add(-1) < 0 {
			return nil, errDown
		}
		return nil, nil
	})
	return s
}

// handleAll handles messages of distinct keys, and returns what came of them when all have ended.
func (s *service) handleAll(ctx context.Context, ids ...string) func() []error {
	errs := make([]error, len(ids))
	var running sync.WaitGroup
	for i, id := range ids {
		running.Go(func() { _, errs[i] = s.handle(newMessage(ctx, id)) })
	}
	return func() []error { running.Wait(); return errs }
}

func keys(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(i))
	}
	return ids
}

func TestBreakerOpensProbesRampsAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, middleware.BreakerConfig{Ramp: 4}, middleware.RetryConfig{})
		defer s.breaker.Close()
		s.down.Store(true)
		wait := s.handleAll(t.Context(), keys(50)...)
		time.Sleep(2 * time.Second)
		if st := s.breaker.Stats(); st.State == middleware.BreakerClosed || !strings.Contains(st.Reason, "outage") || st.Since.IsZero() {
			t.Fatalf("the breaker is %+v after 2 s, want it open, with the reason", st)
		}
		before := s.calls.Load()
		time.Sleep(time.Minute)
		if probes := s.calls.Load() - before; probes < 3 || probes > 8 {
			t.Errorf("%d probes within a minute, want a few", probes)
		}
		s.down.Store(false)
		for i, err := range wait() {
			if err != nil {
				t.Errorf("message %d: %v, want success", i, err)
			}
		}
		var open int
		for _, c := range s.changes {
			if c == "probing to open" {
				open++
			}
		}
		if want := []string{"closed to open", "open to probing"}; !slices.Equal(s.changes[:2], want) {
			t.Errorf("it began with %q, want %q", s.changes[:2], want)
		}
		if want := []string{"open to probing", "probing to ramping", "ramping to closed"}; !slices.Equal(s.changes[len(s.changes)-3:], want) {
			t.Errorf("it ended with %q, want %q", s.changes[len(s.changes)-3:], want)
		}
		if open < 3 {
			t.Errorf("%d probes failed, want some", open)
		}
		if want := []string{"pause", "resume"}; !slices.Equal(s.gate.events, want) {
			t.Errorf("the intake saw %q, want %q: one pause for all of it", s.gate.events, want)
		}
	})
}

// The dependency came back for one call, and was gone again. Those that had waited were given up: another key had
// succeeded since they had first failed, and their attempts were those of the outage.
func TestFlappingDependencyGivesNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, middleware.BreakerConfig{Keys: 3, Ramp: 1}, middleware.RetryConfig{MaxAttempts: 3})
		defer s.breaker.Close()
		s.down.Store(true)
		wait := s.handleAll(t.Context(), keys(3)...)
		time.Sleep(10 * time.Second)
		if st := s.breaker.Stats(); st.State != middleware.BreakerOpen {
			t.Fatalf("the breaker is %+v, want it open", st)
		}
		s.spare.Store(1)
		time.Sleep(10 * time.Minute)
		if st := s.breaker.Stats(); st.State != middleware.BreakerClosed || st.Held != 2 {
			t.Errorf("the breaker is %+v, want it closed, too few keys fail, and 2 held", st)
		}
		s.down.Store(false)
		for i, err := range wait() {
			if err != nil {
				t.Errorf("message %d: %v, want success in the end", i, err)
			}
		}
	})
}

// D6: a dependency of the handlers was away while copies of messages came that had taken effect before, as after a crash. The
// inbox skipped these, which went for successes: the breaker stayed closed, and everything else became a dead letter.
func TestDuplicatesVouchForNothing(t *testing.T) {
	for _, receipt := range []flight.Receipt{flight.Duplicate, flight.Stale, flight.Ignored} {
		t.Run(receipt.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t, middleware.BreakerConfig{Keys: 3}, middleware.RetryConfig{MaxAttempts: 3})
				defer s.breaker.Close()
				s.down.Store(true)
				wait := s.handleAll(t.Context(), keys(5)...)
				skip := mustRetry(t, middleware.RetryConfig{Breaker: s.breaker})(func(msg *message.Message) ([]*message.Message, error) {
					flight.Give(msg.Context(), receipt)
					return nil, nil
				})
				for i := range 600 { // also while the breaker is open: no copy closes it, or is held up for good
					if _, err := skip(newMessage(t.Context(), fmt.Sprint("copy ", i))); err != nil {
						t.Errorf("copy %d: %v", i, err)
					}
					time.Sleep(100 * time.Millisecond)
				}
				if st := s.breaker.Stats(); st.State == middleware.BreakerClosed || st.Outages != 1 {
					t.Errorf("the breaker is %+v, want the first outage to go on", st)
				}
				s.down.Store(false)
				for i, err := range wait() {
					if err != nil {
						t.Errorf("message %d: %v, want success in the end", i, err)
					}
				}
			})
		})
	}
}

// beside handles messages of other keys, which succeed, until stop. It must be called in a synctest bubble: its time is virtual.
func beside(t *testing.T, handle message.HandlerFunc) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	others.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := handle(newMessage(ctx, fmt.Sprint(i))); err != nil && !isStop(err) {
				t.Errorf("message %d: %v", i, err)
			}
			time.Sleep(time.Millisecond)
		}
	})
	return ctx, func() { cancel(); others.Wait() }
}

// The attempts of a message were used up while the database was away, and the next one failed by a connection that it had lost: a dead letter,
// for what no message can cause, and for one failure that may be its own. It gets a whole series for these.
func TestI11WhatNoMessageCanCauseUsesNoAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const away, attempts = 4, 5
		b, err := middleware.NewBreaker(middleware.BreakerConfig{}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		calls := 0
		handle := mustRetry(t, middleware.RetryConfig{MaxAttempts: attempts, Breaker: b})(func(msg *message.Message) ([]*message.Message, error) {
			if msg.UUID != "unlucky" {
				return nil, nil
			}
			if calls++; calls <= away {
				return nil, classify.Unavailable(errDown)
			}
			return nil, errDown
		})
		ctx, stop := beside(t, handle)
		_, err = handle(newMessage(ctx, "unlucky"))
		stop()
		fail, ok := errors.AsType[*middleware.GaveUpError](err)
		if want := away + attempts; !ok || calls != want || fail.Attempts != want {
			t.Errorf("after %d attempts: %v; want it given up after %d", calls, err, want)
		}
	})
}

// The attempts of a message were used up while the database was away, and the next one asked for a long delay: it was dead-lettered on its
// first failure of its own, without any delay.
func TestI11WhatNoMessageCanCauseUsesNoDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := middleware.NewBreaker(middleware.BreakerConfig{}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		calls := 0
		handle := mustRetry(t, middleware.RetryConfig{MaxAttempts: 5, MaxHold: time.Minute, Breaker: b})(func(msg *message.Message) ([]*message.Message, error) {
			if msg.UUID != "busy" {
				return nil, nil
			}
			if calls++; calls < 5 {
				return nil, classify.Unavailable(errDown)
			}
			return nil, classify.RetryAfter(errDown, 2*time.Minute)
		})
		ctx, stop := beside(t, handle)
		msg := newMessage(ctx, "busy")
		flight.Ensure(msg).Delays = flight.DelaysOutside
		_, err = handle(msg)
		stop()
		delayed, ok := errors.AsType[*middleware.DelayedError](err)
		if !ok || calls != 5 || delayed.After != 2*time.Minute || delayed.Attempts != 1 {
			t.Errorf("after %d attempts: %#v; want a delay of 2 m, with one attempt that counts", calls, err)
		}
	})
}

// Each series of a message held one error of the database's own, so that it got another, and its key stood for ever.
func TestMessageThatFailsBetweenOutagesIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const attempts = 5
		b, err := middleware.NewBreaker(middleware.BreakerConfig{}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		calls := 0
		handle := mustRetry(t, middleware.RetryConfig{MaxAttempts: attempts, Breaker: b})(func(msg *message.Message) ([]*message.Message, error) {
			switch {
			case msg.UUID != "bad":
				return nil, nil
			case calls%2 == 1:
				calls++
				return nil, classify.Unavailable(errDown)
			}
			calls++
			return nil, errDown
		})
		ctx, stop := beside(t, handle)
		within, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		_, err = handle(newMessage(within, "bad"))
		stop()
		if _, ok := errors.AsType[*middleware.GaveUpError](err); !ok || calls != 2*attempts-1 {
			t.Errorf("after %d attempts: %v; want it given up after %d of its own and those between", calls, err, attempts)
		}
	})
}

func TestHundredsThatComeAndFailAtOnceAllSucceedInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, middleware.BreakerConfig{Keys: 2, After: time.Millisecond, ProbeDelay: 5 * time.Millisecond, MaxProbeDelay: 50 * time.Millisecond, Ramp: 8},
			middleware.RetryConfig{MaxAttempts: 2, InitialDelay: time.Millisecond})
		defer s.breaker.Close()
		var flaps sync.WaitGroup
		flaps.Go(func() {
			for i := range 10 {
				s.down.Store(i%2 == 0)
				time.Sleep(100 * time.Millisecond)
			}
		})
		// Some end while they wait: nothing may be lost of the permits by that.
		short, cancel := context.WithTimeout(t.Context(), 35*time.Millisecond)
		defer cancel()
		waitShort := s.handleAll(short, keys(100)...)
		wait := s.handleAll(t.Context(), keys(300)...)
		flaps.Wait()
		for i, err := range wait() {
			if err != nil && !isGivenUpFairly(err) {
				t.Errorf("message %d: %v", i, err)
			}
		}
		for i, err := range waitShort() {
			if err != nil && !isStop(err) {
				t.Errorf("short message %d: %v, want a success or a stop", i, err)
			}
		}
		s.breaker.ForceClose()
		if st := s.breaker.Stats(); st.Waiting != 0 || st.Held != 0 {
			t.Errorf("the breaker is %+v when all have ended, want nothing left", st)
		}
	})
}

// isGivenUpFairly tells that a message used up a whole series of attempts.
func isGivenUpFairly(err error) bool {
	fail, ok := errors.AsType[*middleware.GaveUpError](err)
	return ok && fail.Attempts >= 2
}

func TestWaitForTheBreakerEndsWithTheMessagesContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, middleware.BreakerConfig{}, middleware.RetryConfig{})
		defer s.breaker.Close()
		s.down.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wait := s.handleAll(ctx, keys(20)...)
		time.Sleep(30 * time.Second)
		late := s.handleAll(ctx, "late") // has not begun, and does not
		calls := s.calls.Load()
		for i, err := range append(wait(), late()...) {
			if !isStop(err) {
				t.Errorf("message %d: %v, want a stop: it did not fail", i, err)
			}
		}
		if more := s.calls.Load() - calls; more > 3 {
			t.Errorf("%d calls after the breaker had opened for long, want probes alone", more)
		}
	})
}

// A handler that takes a probe with it, by a panic, must not take the place of all later ones.
func TestProbeThatPanicsGivesItsPermitBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := middleware.NewBreaker(middleware.BreakerConfig{Keys: 2, Ramp: 1}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		var mode atomic.Value
		mode.Store("down")
		h := mustRetry(t, middleware.RetryConfig{Breaker: b})(func(*message.Message) ([]*message.Message, error) {
			switch mode.Load() {
			case "panic":
				mode.Store("up")
				panic("no such luck")
			case "down":
				return nil, errDown
			}
			return nil, nil
		})
		var running sync.WaitGroup
		var panicked, succeeded atomic.Int64
		for i := range 3 {
			running.Go(func() {
				defer func() {
					if recover() != nil {
						panicked.Add(1)
					}
				}()
				if _, err := h(newMessage(t.Context(), fmt.Sprint(i))); err == nil {
					succeeded.Add(1)
				}
			})
		}
		for b.Stats().State != middleware.BreakerOpen {
			time.Sleep(10 * time.Millisecond)
		}
		mode.Store("panic")
		running.Wait()
		if panicked.Load() != 1 || succeeded.Load() != 2 {
			t.Errorf("%d panicked and %d succeeded, want 1 and 2", panicked.Load(), succeeded.Load())
		}
	})
}

func TestErrorsThatDoNotPassDoNotOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := middleware.NewBreaker(middleware.BreakerConfig{Guard: middleware.DeadLetterGuard{Off: true}}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		h := mustRetry(t, middleware.RetryConfig{Breaker: b})(func(*message.Message) ([]*message.Message, error) {
			return nil, classify.Permanent(errDown)
		})
		for i := range 1000 {
			_, err := h(newMessage(t.Context(), fmt.Sprint(i)))
			if fail := gaveUp(t, err); fail.Attempts != 1 {
				t.Fatalf("gave up after %d attempts, want 1", fail.Attempts)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if st := b.Stats(); st.State != middleware.BreakerClosed {
			t.Errorf("the breaker is %+v, want it closed", st)
		}
	})
}

// On a router of one's own: one breaker for each consumer, given to its Retry.
func ExampleBreaker() {
	breaker, err := middleware.NewBreaker(middleware.BreakerConfig{}, nil, nil) // an ordering.Intake in place of the first nil
	if err != nil {
		fmt.Println(err)
		return
	}
	defer breaker.Close()
	retry, err := middleware.Retry(middleware.RetryConfig{Breaker: breaker})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := retry(func(msg *message.Message) ([]*message.Message, error) {
		fmt.Println("charged", msg.UUID)
		return nil, nil
	})
	if _, err := handler(message.NewMessage("order 7", nil)); err != nil {
		fmt.Println(err)
	}
	fmt.Println("breaker:", breaker.Stats().State)
	// Output:
	// charged order 7
	// breaker: closed
}

// lost is a place that cannot be had again: a drain began meanwhile.
type lost struct{ draining chan struct{} }

func (lost) Rest()                       {}
func (lost) Rouse(context.Context) bool  { return false }
func (l lost) Draining() <-chan struct{} { return l.draining }

// A delivery got the permit of the probe and was taken away in the same moment. The permit went with it: there was no
// other probe.
func TestPermitOfADeliveryThatLostItsPlaceGoesToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, middleware.BreakerConfig{}, middleware.RetryConfig{})
		defer s.breaker.Close()
		s.down.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		wait := s.handleAll(ctx, keys(10)...)
		time.Sleep(10 * time.Second)
		var running sync.WaitGroup
		for i := range 10 {
			msg := newMessage(ctx, fmt.Sprint("lost", i))
			flight.Ensure(msg).Place = lost{make(chan struct{})}
			running.Go(func() {
				if _, err := s.handle(msg); !isStop(err) {
					t.Errorf("%v, want a stop", err)
				}
			})
		}
		time.Sleep(10 * time.Minute)
		s.down.Store(false)
		for i, err := range wait() {
			if err != nil {
				t.Errorf("message %d: %v, want success", i, err)
			}
		}
		running.Wait()
	})
}

// A probe never returned: it kept the only permit, and nothing else was tried, for as long as the process lived.
func TestI11ProbeThatNeverReturnsStallsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := middleware.NewBreaker(middleware.BreakerConfig{Keys: 3}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		var down, hang atomic.Bool
		stuck := make(chan struct{})
		s := &service{t: t, breaker: b}
		s.handle = mustRetry(t, middleware.RetryConfig{Breaker: b})(func(*message.Message) ([]*message.Message, error) {
			time.Sleep(time.Millisecond)
			if hang.Swap(false) {
				<-stuck
			}
			if down.Load() {
				return nil, errDown
			}
			return nil, nil
		})
		down.Store(true)
		var done atomic.Int32
		for _, id := range keys(5) {
			wait := s.handleAll(t.Context(), id)
			go func() {
				if err := wait()[0]; err != nil {
					t.Errorf("message %s: %v, want success in the end", id, err)
				}
				done.Add(1)
			}()
		}
		time.Sleep(5 * time.Second)
		down.Store(false)
		hang.Store(true)
		time.Sleep(5 * time.Minute)
		if got := done.Load(); got != 4 || hang.Load() {
			t.Errorf("%d messages are handled after 5 minutes, want 4: all but the one that hangs", got)
		}
		if st := b.Stats(); st.State != middleware.BreakerClosed {
			t.Errorf("the breaker is %+v, want it closed", st)
		}
		close(stuck)
		synctest.Wait()
		time.Sleep(time.Second)
		if got := done.Load(); got != 5 {
			t.Errorf("%d messages are handled, want all 5", got)
		}
	})
}

// One message failed whatever happened, and nothing else came: the breaker ramped for ever.
func TestI11OneKeyThatFailsDoesNotKeepItRamping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := middleware.NewBreaker(middleware.BreakerConfig{Keys: 3}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		var down atomic.Bool
		down.Store(true)
		s := &service{t: t, breaker: b}
		s.handle = mustRetry(t, middleware.RetryConfig{Breaker: b})(func(msg *message.Message) ([]*message.Message, error) {
			time.Sleep(time.Millisecond)
			if down.Load() || msg.UUID == "bad" {
				return nil, errDown
			}
			return nil, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		others := s.handleAll(ctx, keys(3)...)
		time.Sleep(5 * time.Second)
		if st := b.Stats(); st.State == middleware.BreakerClosed {
			t.Fatalf("the breaker is %+v, want it open", st)
		}
		down.Store(false)
		for b.Stats().State != middleware.BreakerRamping {
			time.Sleep(time.Millisecond)
		}
		wait := s.handleAll(ctx, "bad")
		time.Sleep(10 * time.Minute)
		if st := b.Stats(); st.State != middleware.BreakerClosed || st.Outages != 1 {
			t.Errorf("the breaker is %+v after 10 minutes, want it closed", st)
		}
		cancel()
		others()
		wait()
	})
}

// A batch asked for the opening hours of a bank: five keys that "failed", and the consumer stood as if there were an outage.
func TestDelaysThatLeaveTheLaneAreNoOutage(t *testing.T) {
	for _, test := range []struct {
		name  string
		err   error
		opens bool
	}{
		{"asked for", classify.RetryAfter(errDown, 9*time.Hour), false},
		{"beside what no message can cause", errors.Join(classify.RetryAfter(errDown, 9*time.Hour), classify.Unavailable(errDown)), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, err := middleware.NewBreaker(middleware.BreakerConfig{}, nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				handle := mustRetry(t, middleware.RetryConfig{MaxHold: time.Minute, MaxRetryAfter: 24 * time.Hour, Breaker: b})(
					func(*message.Message) ([]*message.Message, error) {
						return nil, test.err
					})
				for _, id := range keys(5) {
					msg := newMessage(t.Context(), id)
					flight.Ensure(msg).Delays = flight.DelaysOutside
					_, err := handle(msg)
					if _, ok := errors.AsType[*middleware.DelayedError](err); !ok {
						t.Errorf("message %s: %v, want a delay", id, err)
					}
					time.Sleep(time.Second)
				}
				if st := b.Stats(); (st.State != middleware.BreakerClosed) != test.opens {
					t.Errorf("the breaker is %+v, want it open: %v", st, test.opens)
				}
			})
		})
	}
}
