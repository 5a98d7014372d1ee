package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/internal/trial"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/ordering"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/telemetry"
)

// line is a consumer in a run: its subscription, its intake and its stages.
type line struct {
	consumer  *Consumer
	intake    *ordering.Intake
	poison    *poison.Poison
	breaker   *middleware.Breaker
	telemetry *telemetry.Consumer
	delays    *delays
	sources   []source
}

// assemble opens c's subscription and builds its stages. Nothing is read yet.
func (c *Consumer) assemble(dlt message.Publisher) (*line, error) {
	r, cfg := c.runtime, &c.config
	caps := r.config.Broker.Capabilities()
	window, concurrency := c.bounds(caps)

	intake, err := ordering.New(ordering.Config{
		Consumer:     cfg.Name,
		Window:       window,
		Concurrency:  concurrency,
		Key:          cfg.Key,
		DrainTimeout: r.config.DrainTimeout,
		Successors:   true, // there is no stage outside but our own
		Logger:       r.config.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", cfg.Name, err)
	}
	tel := r.telemetry.Consumer(telemetry.ConsumerConfig{Consumer: cfg.Name, Topic: cfg.Topic, Classifier: cfg.Classifier})
	dead, err := poison.New(poison.Config{
		Consumer:       cfg.Name,
		Publisher:      dlt,
		Topic:          r.config.DeadLetterTopic,
		Classifier:     cfg.Classifier,
		MaxHeaderBytes: caps.MaxHeaderBytes,
		Logger:         r.config.Logger,
		ReadOnly:       c.readOnly(),
		Refer:          caps.Replays,
		Park:           c.park(),
		OnStored: func(ctx context.Context, rec poison.Record) {
			tel.DeadLettered(ctx, rec.ErrorType, rec.Error)
			c.forget(rec)
			r.config.Logger.LogAttrs(ctx, slog.LevelWarn, "dead letter stored",
				slog.String("consumer", rec.Consumer), slog.String("topic", rec.Topic), slog.String("id", rec.MessageID),
				slog.String("dead_letter", rec.ID), slog.Int("attempts", rec.Attempts),
				slog.String("error_type", rec.ErrorType), slog.String("error", rec.Error))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", cfg.Name, err)
	}
	if err := dead.Check(cfg.Topic); err != nil && !c.readsDeadLetters() {
		return nil, fmt.Errorf("consumer %s: %w", cfg.Name, err)
	}
	breaker, err := c.newBreaker(intake, tel)
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", cfg.Name, err)
	}
	l := &line{consumer: c, intake: intake, poison: dead, breaker: breaker, telemetry: tel, delays: c.newDelays()}
	if err := l.openSources(window); err != nil {
		return nil, errors.Join(append(l.closeSources(), fmt.Errorf("consumer %s: %w", cfg.Name, err))...)
	}
	c.operator.attach(l)
	return l, nil
}

// stages returns the middleware of one of the consumer's subscriptions, outermost first. The order is the architecture: see
// DESIGN.md.
func (l *line) stages(s source) ([]message.HandlerMiddleware, error) {
	c := l.consumer
	retryConfig := c.config.Retry
	if retryConfig.Classifier == nil {
		retryConfig.Classifier = c.config.Classifier
	}
	retryConfig.OnRetry = c.retried(l, retryConfig.OnRetry)
	retryConfig.Breaker = l.breaker
	retryConfig.MaxHold = max(c.config.MaxHold, 0) // Off: no limit
	retryConfig.ReadOnly = retryConfig.ReadOnly || c.readOnly()
	retry, err := middleware.Retry(retryConfig)
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", c.config.Name, err)
	}
	stages := []message.HandlerMiddleware{
		settled,
		l.intake.Middleware,
		middleware.Recover(), // for Goexit: its other half is inside retry
		l.telemetry.Middleware,
		middleware.Correlation(middleware.CorrelationConfig{
			Source:   c.runtime.source(),
			Consumer: c.config.Name,
			Identify: c.identifier(s.brings),
		}),
	}
	if limit := holdLimit(c.runtime.config.Broker.Capabilities()); limit > 0 {
		stages = append(stages, holdFor(limit))
	}
	stages = append(stages, c.settle, l.poison.Middleware, l.delays.stage(s.brings))
	stages = append(stages, c.parked()...)
	stages = append(stages, retry)
	stages = append(stages, c.ledgered()...)
	stages = append(stages, l.telemetry.Attempt, middleware.Recover())
	if t, ok := c.runtime.config.Broker.(trial.Broker); ok {
		stages = append(stages, t.AroundAttempts())
	}
	if len(c.config.Middleware) > 0 { // our own innermost stage returns nil only with a receipt
		stages = append(append(stages, needReceipt), c.config.Middleware...)
	}
	return stages, nil
}

// settled keeps from the router the errors of messages that our stages have settled and reported: it would log
// them again. What else reaches the router is a mistake of ours and is logged.
func settled(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		growStack(0)
		_, err := h(msg)
		if f := flight.From(msg.Context()); f != nil {
			switch f.Settlement() {
			case flight.Acked, flight.Released, flight.Delayed:
				err = nil
			case flight.Unsettled, flight.Nacked:
			}
		}
		return nil, err
	}
}

// readOnly tells that nothing below the retries can write to the message: typed handlers do not see it, and
// raw ones get a copy.
func (c *Consumer) readOnly() bool { return len(c.config.Middleware) == 0 }

// identifier returns identify for the messages of one source; brings says that it has messages that were kept before, which have their id
// of then.
func (c *Consumer) identifier(brings bool) func(*message.Message) string {
	if !brings {
		return c.identify
	}
	return func(msg *message.Message) string {
		if redriven := poison.RedriveOf(msg.Context()); redriven != nil {
			if id := redriven.Identify(); id != "" {
				return id
			}
		}
		return c.identify(msg)
	}
}

// identify gives the message its id within the consumer: by the consumer's own function, else by event. A
// message without any id has "", which only HandleTx refuses. If the function panics the id is "" too:
// dispatch calls it again, where a panic is the message's failure.
func (c *Consumer) identify(msg *message.Message) (id string) {
	if c.config.ID != nil {
		defer func() {
			if recover() != nil {
				id = ""
			}
		}()
		if id, err := event.NaturalID(c.config.ID(msg)); err == nil {
			return id
		}
	}
	id, err := event.Identify(msg, c.config.Topic)
	if err != nil {
		return ""
	}
	return id
}

// retried counts a retry and tells telemetry and the user's own hook.
func (c *Consumer) retried(l *line, next func(context.Context, middleware.RetryEvent)) func(context.Context, middleware.RetryEvent) {
	return func(ctx context.Context, e middleware.RetryEvent) {
		c.counts.retries.Add(1)
		l.telemetry.Retried(ctx, e.Delay, e.ErrorType)
		if next != nil {
			next(ctx, e)
		}
	}
}

// readsDeadLetters tells whether the consumer is one of a dead-letter topic, by its name or its handler.
func (c *Consumer) readsDeadLetters() bool {
	r := c.routes[AnyType]
	return r != nil && r.whole || c.runtime.config.DeadLetterTopic == nil && strings.HasSuffix(c.config.Topic, poison.Suffix)
}

// bounds returns the window and the concurrency that the broker and the databases allow.
func (c *Consumer) bounds(caps brokers.Capabilities) (window, concurrency int) {
	window = first(c.config.Window, defaultWindow)
	if caps.MaxUnacked > 0 {
		window = min(window, caps.MaxUnacked)
	}
	concurrency = min(first(c.config.Concurrency, defaultConcurrency), window)
	if n := c.transactions(); n > 0 {
		concurrency = min(concurrency, n)
	}
	return window, concurrency
}

// holdLimit is how long a delivery may be held: 80 % of what the broker puts up with; 0 is for ever.
func holdLimit(caps brokers.Capabilities) time.Duration {
	if caps.ExtendsPatience {
		return caps.PatienceLimit * 8 / 10
	}
	return caps.Patience * 8 / 10
}

// holdFor ends the context of a delivery after limit, so that it is released before the broker's own hard
// limit (RabbitMQ closes the channel, SQS delivers elsewhere). The time that it waited for its turn is not in it: what waits cannot be given
// back one by one, since a broker sends what comes later before it. At its limit the broker takes all of it back, in its order.
func holdFor(limit time.Duration) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			ctx, cancel := context.WithTimeout(msg.Context(), limit)
			defer cancel()
			msg.SetContext(ctx)
			return h(msg)
		}
	}
}
