package runtime

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/ordering"
	"github.com/headrace-go/headrace/telemetry"
)

// newBreaker makes the consumer's breaker, which pauses its intake.
func (c *Consumer) newBreaker(intake *ordering.Intake, tel *telemetry.Consumer) (*middleware.Breaker, error) {
	cfg := c.config.Breaker
	if c.readsDeadLetters() {
		cfg.Guard.Off = true // what fails there becomes no dead letter
	}
	return middleware.NewBreaker(cfg, intake, func(change middleware.BreakerChange) {
		ctx, logger := context.Background(), c.runtime.config.Logger
		attrs := []slog.Attr{
			slog.String("consumer", c.config.Name), slog.String("topic", c.config.Topic),
			slog.String("cause", change.Cause.String()), slog.Time("since", change.Since),
		}
		switch {
		case change.From == middleware.BreakerClosed:
			tel.Paused(ctx, change.Cause.String())
			logger.LogAttrs(ctx, slog.LevelError, "intake paused by the breaker", append(attrs, slog.String("error_type", change.ErrorType))...)
		case change.To == middleware.BreakerClosed:
			logger.LogAttrs(ctx, slog.LevelWarn, "intake resumed by the breaker", attrs...)
		case change.To == middleware.BreakerRamping && change.From == middleware.BreakerProbing:
			logger.LogAttrs(ctx, slog.LevelWarn, "probe succeeded", attrs...)
		}
	})
}

// Breaker returns how the consumer's breaker stands. Before Run it is closed.
func (c *Consumer) Breaker() middleware.BreakerStats {
	if l := c.operator.attached(); l != nil {
		return l.breaker.Stats()
	}
	return middleware.BreakerStats{}
}

// Pause stops the consumer's intake: nothing is started until Resume is called with the same reason, which readiness
// tells. What runs, or waits to be tried again, goes on. It may be called before Run.
func (c *Consumer) Pause(reason string) { c.operator.pause(reason) }

// Resume takes back Pause(reason). A pause of the breaker it leaves alone: see ForceClose.
func (c *Consumer) Resume(reason string) { c.operator.resume(reason) }

// ForceClose ends a pause of the breaker at once, for an operator who knows that its reason is gone. Otherwise it
// finds out by itself. Without such a pause, and before Run, it does nothing.
func (c *Consumer) ForceClose() {
	if l := c.operator.attached(); l != nil {
		l.breaker.ForceClose()
	}
}

// AllowDeadLetters lets messages become dead letters, for as long as d, that the breaker would hold back: those whose
// retries are used up though nothing else succeeds, and any number that fail for good. A pause because of
// these ends. 0 ends an earlier permission. Before Run it does nothing.
func (c *Consumer) AllowDeadLetters(d time.Duration) {
	if l := c.operator.attached(); l != nil {
		l.breaker.AllowDeadLetters(d)
	}
}

// operator keeps what an operator has asked of a consumer, until and while it runs.
type operator struct {
	mu     sync.Mutex
	line   *line
	paused map[string]bool
}

func (o *operator) attach(l *line) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.line = l
	for reason := range o.paused {
		l.intake.Pause(reason)
	}
}

func (o *operator) attached() *line {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.line
}

func (o *operator) pause(reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.paused == nil {
		o.paused = map[string]bool{}
	}
	o.paused[reason] = true
	if o.line != nil {
		o.line.intake.Pause(reason)
	}
}

func (o *operator) resume(reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.paused[reason] {
		return
	}
	delete(o.paused, reason)
	if o.line != nil {
		o.line.intake.Resume(reason)
	}
}
