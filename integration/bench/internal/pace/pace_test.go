package pace_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/integration/bench/internal/pace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handleAll handles n messages one after another, and goes on until ctx ends.
func handleAll(l *pace.Load, n int) func(context.Context) error {
	return func(ctx context.Context) error {
		for range n {
			if ctx.Err() != nil {
				break
			}
			l.Handle()
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

func TestRateIsWithoutTheFirstQuarter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := pace.NewLoad(100, 0)
		got, err := l.Run(t.Context(), time.Hour, func(ctx context.Context) error {
			for i := range 100 {
				if i < 25 {
					time.Sleep(time.Second)
				} else {
					time.Sleep(10 * time.Millisecond)
				}
				l.Handle()
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		if got.Handled != 100 || math.Abs(got.PerSecond-100) > 0.1 {
			t.Errorf("handled %d at %.2f/s, want 100 at 100/s", got.Handled, got.PerSecond)
		}
	})
}

func TestLimitIsFromTheFirstMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := pace.NewLoad(1_000_000, 10*time.Millisecond)
		began := time.Now()
		got, err := l.Run(t.Context(), 2*time.Second, func(ctx context.Context) error {
			time.Sleep(5 * time.Second) // to connect
			return handleAll(l, 1_000_000)(ctx)
		})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began).Round(100 * time.Millisecond); took != 7*time.Second {
			t.Errorf("it took %v, want 7s", took)
		}
		if math.Abs(got.PerSecond-100) > 2 {
			t.Errorf("%.2f/s, want 100/s", got.PerSecond)
		}
	})
}

func TestConcurrentHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := pace.NewLoad(400, time.Second)
		got, err := l.Run(t.Context(), time.Hour, func(ctx context.Context) error {
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					for range 40 {
						l.Handle()
					}
				})
			}
			all.Wait()
			<-ctx.Done()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got.Handled != 400 || math.Abs(got.PerSecond-10) > 0.1 {
			t.Errorf("handled %d at %.2f/s, want 400 at 10/s", got.Handled, got.PerSecond)
		}
	})
}

func TestErrorsOfTheSubject(t *testing.T) {
	refused := errors.New("refused")
	synctest.Test(t, func(t *testing.T) {
		if _, err := pace.NewLoad(1, 0).Run(t.Context(), time.Hour, func(context.Context) error { return refused }); !errors.Is(err, refused) {
			t.Errorf("it ended before the first message: %v, want %v", err, refused)
		}
		l := pace.NewLoad(1, 0)
		if _, err := l.Run(t.Context(), time.Hour, func(ctx context.Context) error {
			l.Handle()
			<-ctx.Done()
			return refused
		}); !errors.Is(err, refused) {
			t.Errorf("it ended with an error: %v, want %v", err, refused)
		}
		idle := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		began := time.Now()
		_, err := pace.NewLoad(1, 0).Run(t.Context(), time.Hour, idle)
		if took := time.Since(began).Round(time.Second); err == nil || took != time.Minute {
			t.Errorf("no message came: %v after %v, want an error after a minute", err, took)
		}
	})
}
