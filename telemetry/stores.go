package telemetry

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// OutboxStats is how an outbox and its relay in this process stand at one moment.
type OutboxStats struct {
	// Depth is the number of rows that are not yet published, Oldest the age of the oldest of them. Dead is
	// the number of those that were given up, Delayed of those whose time has not come.
	Depth         int64
	Oldest        time.Duration
	Dead, Delayed int64

	// Buckets are those that this relay holds by lease, Relays the live ones, Lost the leases that ended while
	// it took them for its own.
	Buckets, Relays int
	Lost            uint64
}

// InboxStats is how an inbox stands at one moment.
type InboxStats struct {
	// Claims is about the number of messages that it remembers, Oldest the age of the oldest of them.
	Claims int64
	Oldest time.Duration

	// Margin is how far it remembers beyond the oldest redelivery there can be; reported only if MarginKnown.
	Margin      time.Duration
	MarginKnown bool
}

// ObserveOutbox reports read's answer whenever the metrics are collected, until stop is called, with name
// as headrace.outbox.name if it is not empty. read may query the database; its context ends with the
// collection. What it cannot tell is not reported, and its error goes to otel's error handler.
func (t *Telemetry) ObserveOutbox(name string, read func(context.Context) (OutboxStats, error)) (stop func() error, err error) {
	o := &t.observables
	return observeStore(t, "outbox", name, keyOutbox, read, func(observer metric.Observer, s OutboxStats, attrs metric.ObserveOption) {
		observer.ObserveInt64(o.outboxDepth, s.Depth, attrs)
		observer.ObserveFloat64(o.outboxOldest, s.Oldest.Seconds(), attrs)
		observer.ObserveInt64(o.outboxDead, s.Dead, attrs)
		observer.ObserveInt64(o.outboxDelayed, s.Delayed, attrs)
		observer.ObserveInt64(o.outboxBuckets, int64(s.Buckets), attrs)
		observer.ObserveInt64(o.outboxRelays, int64(s.Relays), attrs)
		observer.ObserveInt64(o.outboxLost, int64(s.Lost), attrs)
	}, o.outboxDepth, o.outboxOldest, o.outboxDead, o.outboxDelayed, o.outboxBuckets, o.outboxRelays, o.outboxLost)
}

// ObserveInbox reports read's answer, as [Telemetry.ObserveOutbox] does, with name as headrace.inbox.name.
func (t *Telemetry) ObserveInbox(name string, read func(context.Context) (InboxStats, error)) (stop func() error, err error) {
	o := &t.observables
	return observeStore(t, "inbox", name, keyInbox, read, func(observer metric.Observer, s InboxStats, attrs metric.ObserveOption) {
		observer.ObserveInt64(o.inboxSize, s.Claims, attrs)
		observer.ObserveFloat64(o.inboxOldest, s.Oldest.Seconds(), attrs)
		if s.MarginKnown {
			observer.ObserveFloat64(o.inboxMargin, s.Margin.Seconds(), attrs)
		}
	}, o.inboxSize, o.inboxOldest, o.inboxMargin)
}

func observeStore[S any](t *Telemetry, what, name string, key attribute.Key, read func(context.Context) (S, error),
	report func(metric.Observer, S, metric.ObserveOption), instruments ...metric.Observable,
) (stop func() error, err error) {
	if read == nil {
		return nil, fmt.Errorf("observe %s %q: read is nil: want a function", what, name)
	}
	var base []attribute.KeyValue
	if name != "" {
		base = append(base, key.String(name))
	}
	attrs := metric.WithAttributeSet(attribute.NewSet(base...))
	registration, err := t.meter.RegisterCallback(func(ctx context.Context, observer metric.Observer) error {
		s, err := read(ctx)
		if err != nil {
			return fmt.Errorf("observe %s %q: %w", what, name, err)
		}
		report(observer, s, attrs)
		return nil
	}, instruments...)
	if err != nil {
		return nil, fmt.Errorf("observe %s %q: %w", what, name, err)
	}
	return registration.Unregister, nil
}

// OutboxPublished reports that rows of an outbox were published to topic, the oldest of them latency after it was
// added.
func (t *Telemetry) OutboxPublished(ctx context.Context, topic string, latency time.Duration) {
	t.metrics.outboxLatency.Record(ctx, latency.Seconds(), metric.WithAttributeSet(attribute.NewSet(keyDestination.String(topic))))
}
