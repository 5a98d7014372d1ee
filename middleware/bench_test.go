package middleware_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	stock "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
)

// BenchmarkFirstSuccess is a message whose first attempt succeeds: each stage, all of them, and Watermill's
// own. Each iteration has a fresh context, as each message does; "none" is the cost of that.
func BenchmarkFirstSuccess(b *testing.B) {
	retry, err := middleware.Retry(middleware.RetryConfig{})
	if err != nil {
		b.Fatal(err)
	}
	readOnly, err := middleware.Retry(middleware.RetryConfig{ReadOnly: true})
	if err != nil {
		b.Fatal(err)
	}
	breaker, err := middleware.NewBreaker(middleware.BreakerConfig{}, nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	guarded, err := middleware.Retry(middleware.RetryConfig{ReadOnly: true, Breaker: breaker})
	if err != nil {
		b.Fatal(err)
	}
	for _, id := range []string{"1", "2"} { // from the second key on a success changes nothing
		done := guarded(func(*message.Message) ([]*message.Message, error) { return nil, nil })
		if _, err := done(newMessage(b.Context(), id)); err != nil {
			b.Fatal(err)
		}
	}
	correlation := middleware.Correlation(middleware.CorrelationConfig{Source: "/billing", Consumer: "billing.orders"})
	timeout := middleware.Timeout(time.Minute)
	stockRetry := stock.Retry{MaxRetries: 4, InitialInterval: 100 * time.Millisecond, MaxInterval: 30 * time.Second, Multiplier: 2, RandomizationFactor: 0.5}

	for _, bench := range []struct {
		name   string
		stages []message.HandlerMiddleware
	}{
		{"headrace/none", nil},
		{"headrace/Retry", []message.HandlerMiddleware{retry}},
		{"headrace/RetryReadOnly", []message.HandlerMiddleware{readOnly}},
		{"headrace/RetryReadOnlyBreaker", []message.HandlerMiddleware{guarded}},
		{"headrace/Recover", []message.HandlerMiddleware{middleware.Recover()}},
		{"headrace/Timeout", []message.HandlerMiddleware{timeout}},
		{"headrace/Correlation", []message.HandlerMiddleware{correlation}},
		{"headrace/all", []message.HandlerMiddleware{middleware.Recover(), correlation, retry, middleware.Recover(), timeout}},
		{"stock/Retry", []message.HandlerMiddleware{stockRetry.Middleware}},
		{"stock/Recoverer", []message.HandlerMiddleware{stock.Recoverer}},
		{"stock/Timeout", []message.HandlerMiddleware{stock.Timeout(time.Minute)}},
		{"stock/CorrelationID", []message.HandlerMiddleware{stock.CorrelationID}},
		{"stock/all", []message.HandlerMiddleware{stock.CorrelationID, stockRetry.Middleware, stock.Recoverer, stock.Timeout(time.Minute)}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			h := func(*message.Message) ([]*message.Message, error) { return nil, nil }
			for i := len(bench.stages) - 1; i >= 0; i-- {
				h = bench.stages[i](h)
			}
			msg := message.NewMessage("0197f1c2-5e5e-7d3c-8f4e-2f6a1d5b9c10", make([]byte, 256))
			for _, key := range []string{"ce_id", "ce_source", "ce_type", "ce_specversion", "ce_time", "ce_correlationid", "traceparent", "content-type"} {
				msg.Metadata.Set(key, "some-value-of-some-length")
			}
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				// As ordering does: the flight is the message's context.
				f := &flight.Flight{Context: ctx, Original: msg}
				msg.SetContext(f)
				if _, err := h(msg); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkGiveUp is a message that is given up at once.
func BenchmarkGiveUp(b *testing.B) {
	retry, err := middleware.Retry(middleware.RetryConfig{MaxAttempts: 1})
	if err != nil {
		b.Fatal(err)
	}
	h := retry(func(*message.Message) ([]*message.Message, error) { return nil, errDown })
	msg := newMessage(b.Context(), "1")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := h(msg); err == nil {
			b.Fatal("no error")
		}
	}
}
