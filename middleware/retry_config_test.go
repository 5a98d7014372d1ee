package middleware_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/middleware"
)

func TestRetryConfigIsChecked(t *testing.T) {
	tests := []struct {
		config middleware.RetryConfig
		want   string // in the error; "": it is right
	}{
		{middleware.RetryConfig{}, ""},
		{middleware.RetryConfig{Jitter: middleware.NoJitter, MaxElapsed: middleware.NoLimit}, ""},
		{middleware.RetryConfig{MaxDelay: time.Millisecond}, ""},
		{middleware.RetryConfig{InitialDelay: time.Hour}, ""},
		{middleware.RetryConfig{MaxAttempts: -1}, "MaxAttempts is -1"},
		{middleware.RetryConfig{InitialDelay: -time.Second}, "InitialDelay is -1s"},
		{middleware.RetryConfig{MaxDelay: -time.Second}, "MaxDelay is -1s"},
		{middleware.RetryConfig{InitialDelay: time.Second, MaxDelay: time.Millisecond}, "MaxDelay is 1ms: want at least InitialDelay, 1s"},
		{middleware.RetryConfig{Multiplier: 0.5}, "Multiplier is 0.5"},
		{middleware.RetryConfig{Multiplier: math.NaN()}, "Multiplier is NaN"},
		{middleware.RetryConfig{Multiplier: math.Inf(1)}, "Multiplier is +Inf"},
		{middleware.RetryConfig{Jitter: 1.5}, "Jitter is 1.5"},
		{middleware.RetryConfig{Jitter: -0.5}, "Jitter is -0.5"},
		{middleware.RetryConfig{Jitter: math.NaN()}, "Jitter is NaN"},
		{middleware.RetryConfig{MaxRetryAfter: -time.Second}, "MaxRetryAfter is -1s"},
		{middleware.RetryConfig{MaxElapsed: -time.Second}, "MaxElapsed is -1s"},
		{middleware.RetryConfig{MaxHold: -time.Second}, "MaxHold is -1s"},
	}
	for _, test := range tests {
		mw, err := middleware.Retry(test.config)
		switch {
		case test.want == "" && (err != nil || mw == nil):
			t.Errorf("%+v: error %v, want none", test.config, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), "middleware.RetryConfig."+test.want)):
			t.Errorf("%+v: error %v, want one with %q", test.config, err, test.want)
		}
	}
}

func TestBudget(t *testing.T) {
	tests := []struct {
		name   string
		config middleware.RetryConfig
		want   time.Duration
	}{
		{"default: MaxElapsed", middleware.RetryConfig{}, 10 * time.Minute},
		{"one attempt holds nothing", middleware.RetryConfig{MaxAttempts: 1}, 0},
		{"asked delays", middleware.RetryConfig{MaxAttempts: 2}, 5 * time.Minute},
		{"the backoff alone", middleware.RetryConfig{MaxRetryAfter: 1, Jitter: middleware.NoJitter}, 1500 * time.Millisecond},
		{"with jitter", middleware.RetryConfig{MaxRetryAfter: 1}, 2250 * time.Millisecond},
		{"jitter stays below MaxDelay", middleware.RetryConfig{MaxRetryAfter: 1, MaxAttempts: 2, InitialDelay: time.Second, MaxDelay: time.Second}, time.Second},
		{"many attempts", middleware.RetryConfig{MaxRetryAfter: 1, MaxAttempts: 1 << 40, MaxElapsed: middleware.NoLimit}, math.MaxInt64},
		{"many attempts, all short", middleware.RetryConfig{MaxRetryAfter: 1, MaxAttempts: 1_000_001, InitialDelay: 1000, MaxDelay: 1000, MaxElapsed: middleware.NoLimit}, time.Second},
	}
	for _, test := range tests {
		if got := test.config.Budget(); got != test.want {
			t.Errorf("%s: %+v: got %v, want %v", test.name, test.config, got, test.want)
		}
	}
}

func TestDelaysOutsideOfTheLane(t *testing.T) {
	for _, tc := range []struct {
		name    string
		config  middleware.RetryConfig
		maxHold time.Duration
		want    time.Duration
	}{
		{"default", middleware.RetryConfig{}, time.Minute, 20 * time.Minute},
		{"all are held", middleware.RetryConfig{}, 5 * time.Minute, 0},
		{"off", middleware.RetryConfig{MaxRetryAfter: time.Hour}, -1, 0},
		{"long ones", middleware.RetryConfig{MaxAttempts: 3, MaxRetryAfter: time.Hour}, time.Minute, 2 * time.Hour},
		{"more than a number holds", middleware.RetryConfig{MaxAttempts: 1 << 40, MaxRetryAfter: time.Hour}, time.Minute, math.MaxInt64 / 2},
	} {
		if got := tc.config.Delays(tc.maxHold); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

// Whatever the errors are, the delays stay within the budget.
func TestDelaysStayWithinTheBudget(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		duration := func(name string, most time.Duration) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(most)).Draw(rt, name))
		}
		c := middleware.RetryConfig{
			MaxAttempts:   rapid.IntRange(0, 20).Draw(rt, "attempts"),
			InitialDelay:  duration("initial", time.Second),
			MaxDelay:      duration("max delay", time.Minute),
			Multiplier:    rapid.SampledFrom([]float64{0, 1, 1.5, 10}).Draw(rt, "multiplier"),
			Jitter:        rapid.SampledFrom([]float64{0, middleware.NoJitter, 0.1, 1}).Draw(rt, "jitter"),
			MaxRetryAfter: duration("max retry after", time.Minute),
			MaxElapsed:    rapid.SampledFrom([]time.Duration{0, middleware.NoLimit, time.Second, time.Hour}).Draw(rt, "elapsed"),
		}
		if c.Validate() != nil {
			return
		}
		asked := rapid.SliceOfN(rapid.Int64Range(-int64(time.Minute), int64(2*time.Minute)), 20, 20).Draw(rt, "asked")
		var slept time.Duration
		synctest.Test(t, func(t *testing.T) {
			runs := 0
			c.OnRetry = func(_ context.Context, e middleware.RetryEvent) { slept += e.Delay }
			_, err := mustRetry(t, c)(func(*message.Message) ([]*message.Message, error) {
				runs++
				return nil, classify.RetryAfter(errDown, time.Duration(asked[runs-1]))
			})(newMessage(t.Context(), "1"))
			_ = gaveUp(t, err)
		})
		if budget := c.Budget(); slept > budget {
			rt.Errorf("%+v: slept %v, over the budget of %v", c, slept, budget)
		}
	})
}
