package telemetry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// ConsumerStats is how a consumer stands at one moment.
type ConsumerStats struct {
	// InFlight is the number of deliveries being handled, Waiting of those that wait for an earlier
	// one of their key.
	InFlight, Waiting int

	// Oldest is for how long the oldest delivery has been in flight; 0 without one.
	Oldest time.Duration

	// Blocked is the number of deliveries that are held because their dead letter cannot be written.
	Blocked int

	// Held is the number of deliveries that have used up their retries while nothing else is known to
	// succeed, or that wait until the breaker lets them run.
	Held int

	// Paused says that the intake is paused, whatever the reason.
	Paused bool

	// OldestAge is the time since the broker stored the oldest message that is held, RetentionMargin what is
	// left until the broker may delete it. They are reported only if known.
	OldestAge, RetentionMargin time.Duration
	AgeKnown, MarginKnown      bool

	// Lag is the number of messages that the broker has for the consumer and has not delivered.
	// It is reported only if LagKnown.
	Lag      int64
	LagKnown bool
}

// BacklogStats is how something stands that waits for people, at one moment.
type BacklogStats struct {
	// Depth is the number of messages, and Keys of their keys.
	Depth, Keys int64
}

// DeadLetterStats is how a consumer's stored dead letters stand at one moment.
type DeadLetterStats struct {
	// Depth is the number of those that nobody has dealt with, and Oldest the age of the oldest of them; 0 without one.
	Depth  int64
	Oldest time.Duration

	// States is the number of all, by their state.
	States map[string]int64
}

// observables are the instruments that are read when the metrics are collected.
type observables struct {
	inFlight, waiting            metric.Int64ObservableUpDownCounter
	blocked, held                metric.Int64ObservableUpDownCounter
	lag, paused, outboxDepth     metric.Int64ObservableGauge
	parkedKeys, parkedMessages   metric.Int64ObservableGauge
	deadLetterDepth              metric.Int64ObservableGauge
	deadLetterStored             metric.Int64ObservableGauge
	oldestInFlight, outboxOldest metric.Float64ObservableGauge
	oldestAge, retentionMargin   metric.Float64ObservableGauge
	deadLetterOldest             metric.Float64ObservableGauge

	outboxDead, outboxDelayed   metric.Int64ObservableGauge
	outboxBuckets, outboxRelays metric.Int64ObservableGauge
	outboxLost                  metric.Int64ObservableCounter
	inboxSize                   metric.Int64ObservableGauge
	inboxOldest, inboxMargin    metric.Float64ObservableGauge
}

func newObservables(meter metric.Meter) (observables, error) {
	var errs []error
	failed := func(i instrument, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("create metric %s: %w", i.name, err))
		}
	}
	upDown := func(i instrument) metric.Int64ObservableUpDownCounter {
		o, err := meter.Int64ObservableUpDownCounter(i.name, metric.WithUnit(i.unit), metric.WithDescription(i.description))
		failed(i, err)
		return o
	}
	count := func(i instrument) metric.Int64ObservableGauge {
		o, err := meter.Int64ObservableGauge(i.name, metric.WithUnit(i.unit), metric.WithDescription(i.description))
		failed(i, err)
		return o
	}
	age := func(i instrument) metric.Float64ObservableGauge {
		o, err := meter.Float64ObservableGauge(i.name, metric.WithUnit(i.unit), metric.WithDescription(i.description))
		failed(i, err)
		return o
	}
	o := observables{
		inFlight:       upDown(inFlight),
		waiting:        upDown(waiting),
		blocked:        upDown(blocked),
		held:           upDown(held),
		paused:         count(paused),
		parkedKeys:     count(parkedKeys),
		parkedMessages: count(parkedMessages),
		oldestInFlight: age(oldestInFlight),
		oldestAge:      age(oldestAge),
		lag:            count(lag),

		retentionMargin:  age(retentionMargin),
		deadLetterDepth:  count(deadLetterDepth),
		deadLetterStored: count(deadLetterStored),
		deadLetterOldest: age(deadLetterOldest),

		outboxDepth:   count(outboxDepth),
		outboxOldest:  age(outboxOldest),
		outboxDead:    count(outboxDead),
		outboxDelayed: count(outboxDelayed),
		outboxBuckets: count(outboxBuckets),
		outboxRelays:  count(outboxRelays),

		inboxSize:   count(inboxSize),
		inboxOldest: age(inboxOldest),
		inboxMargin: age(inboxMargin),
	}
	var err error
	o.outboxLost, err = meter.Int64ObservableCounter(outboxLost.name, metric.WithUnit(outboxLost.unit), metric.WithDescription(outboxLost.description))
	failed(outboxLost, err)
	return o, errors.Join(errs...)
}

// Observe reports read's answer whenever the metrics are collected, until stop is called. read must be
// safe for concurrent use and must not block.
func (c *Consumer) Observe(read func() ConsumerStats) (stop func() error, err error) {
	if read == nil {
		return nil, fmt.Errorf("observe consumer %s: read is nil: want a function", c.config.Consumer)
	}
	o := &c.t.observables
	attrs := metric.WithAttributeSet(attribute.NewSet(c.destination.own.base...))
	registration, err := c.t.meter.RegisterCallback(func(_ context.Context, observer metric.Observer) error {
		s := read()
		observer.ObserveInt64(o.inFlight, int64(s.InFlight), attrs)
		observer.ObserveInt64(o.waiting, int64(s.Waiting), attrs)
		observer.ObserveInt64(o.blocked, int64(s.Blocked), attrs)
		observer.ObserveInt64(o.held, int64(s.Held), attrs)
		observer.ObserveInt64(o.paused, boolToInt(s.Paused), attrs)
		observer.ObserveFloat64(o.oldestInFlight, s.Oldest.Seconds(), attrs)
		if s.AgeKnown {
			observer.ObserveFloat64(o.oldestAge, s.OldestAge.Seconds(), attrs)
		}
		if s.MarginKnown {
			observer.ObserveFloat64(o.retentionMargin, s.RetentionMargin.Seconds(), attrs)
		}
		if s.LagKnown {
			observer.ObserveInt64(o.lag, s.Lag, attrs)
		}
		return nil
	}, o.inFlight, o.waiting, o.blocked, o.held, o.paused, o.oldestInFlight, o.oldestAge, o.retentionMargin, o.lag)
	if err != nil {
		return nil, fmt.Errorf("observe consumer %s: %w", c.config.Consumer, err)
	}
	return registration.Unregister, nil
}

func boolToInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// ObserveParked reports read's answer about the consumer's parked keys whenever the metrics are collected, until stop is
// called. read may query the database, as in [Telemetry.ObserveOutbox].
func (c *Consumer) ObserveParked(read func(context.Context) (BacklogStats, error)) (stop func() error, err error) {
	o := &c.t.observables
	return observeConsumer(c, "parked keys", read, func(observer metric.Observer, s BacklogStats, attrs metric.ObserveOption) {
		observer.ObserveInt64(o.parkedKeys, s.Keys, attrs)
		observer.ObserveInt64(o.parkedMessages, s.Depth, attrs)
	}, o.parkedKeys, o.parkedMessages)
}

// ObserveDeadLetters reports read's answer about the consumer's stored dead letters, as [Consumer.ObserveParked].
func (c *Consumer) ObserveDeadLetters(read func(context.Context) (DeadLetterStats, error)) (stop func() error, err error) {
	o := &c.t.observables
	return observeConsumer(c, "dead letters", read, func(observer metric.Observer, s DeadLetterStats, attrs metric.ObserveOption) {
		observer.ObserveInt64(o.deadLetterDepth, s.Depth, attrs)
		observer.ObserveFloat64(o.deadLetterOldest, s.Oldest.Seconds(), attrs)
		for state, n := range s.States {
			observer.ObserveInt64(o.deadLetterStored, n, attrs, metric.WithAttributes(keyDeadLetterState.String(state)))
		}
	}, o.deadLetterDepth, o.deadLetterOldest, o.deadLetterStored)
}

func observeConsumer[S any](c *Consumer, what string, read func(context.Context) (S, error),
	report func(metric.Observer, S, metric.ObserveOption), instruments ...metric.Observable,
) (stop func() error, err error) {
	if read == nil {
		return nil, fmt.Errorf("observe the %s of consumer %s: read is nil: want a function", what, c.config.Consumer)
	}
	attrs := metric.WithAttributeSet(attribute.NewSet(c.destination.own.base...))
	registration, err := c.t.meter.RegisterCallback(func(ctx context.Context, observer metric.Observer) error {
		s, err := read(ctx)
		if err != nil {
			return fmt.Errorf("observe the %s of consumer %s: %w", what, c.config.Consumer, err)
		}
		report(observer, s, attrs)
		return nil
	}, instruments...)
	if err != nil {
		return nil, fmt.Errorf("observe the %s of consumer %s: %w", what, c.config.Consumer, err)
	}
	return registration.Unregister, nil
}
