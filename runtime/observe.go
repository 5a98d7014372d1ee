package runtime

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/telemetry"
)

// observe makes the state of the consumers and the stores readable as metrics, until drain stops it.
func (u *run) observe() error {
	for _, l := range u.lines {
		if err := u.observeLine(l); err != nil {
			return fmt.Errorf("consumer %s: observe: %w", l.consumer.config.Name, err)
		}
	}
	r := u.runtime
	for i, l := range r.relays {
		stop, err := r.telemetry.ObserveOutbox(nameOf(i, len(r.relays)), l.observe)
		if err != nil {
			return err
		}
		u.stopObserving = append(u.stopObserving, stop)
	}
	dbs := r.databases()
	for i, db := range dbs {
		observed := inbox.ObservedOf(db)
		if observed == nil {
			continue
		}
		stop, err := r.telemetry.ObserveInbox(nameOf(i, len(dbs)), func(ctx context.Context) (telemetry.InboxStats, error) {
			return r.observeInbox(ctx, observed)
		})
		if err != nil {
			return err
		}
		u.stopObserving = append(u.stopObserving, stop)
	}
	return nil
}

func (u *run) observeLine(l *line) error {
	stop, err := l.telemetry.Observe(l.observe)
	if err != nil {
		return err
	}
	u.stopObserving = append(u.stopObserving, stop)
	if err := u.observeDeadLetters(l); err != nil {
		return err
	}
	if l.consumer.parker == nil {
		return nil
	}
	if stop, err = l.telemetry.ObserveParked(l.observeParked); err != nil {
		return err
	}
	u.stopObserving = append(u.stopObserving, stop)
	return nil
}

// nameOf tells one of several stores from the others. A single one needs no name.
func nameOf(i, of int) string {
	if of == 1 {
		return ""
	}
	return strconv.Itoa(i)
}

// observe is what telemetry reads of the consumer when metrics are collected.
func (l *line) observe() telemetry.ConsumerStats {
	s := l.intake.Stats()
	b := l.breaker.Stats()
	stats := telemetry.ConsumerStats{
		InFlight: s.InFlight, Waiting: s.Waiting, Blocked: l.poison.Blocked(),
		Held: b.Held + b.Waiting, Paused: len(s.Paused) > 0,
	}
	if !s.OldestStart.IsZero() {
		stats.Oldest = time.Since(s.OldestStart)
	}
	caps := l.consumer.runtime.config.Broker.Capabilities()
	if stats.AgeKnown = !s.OldestStored.IsZero(); stats.AgeKnown {
		stats.OldestAge = max(time.Since(s.OldestStored), 0) // the broker's clock may be ahead of ours
		stats.RetentionMargin, stats.MarginKnown = caps.Retention-stats.OldestAge, caps.Retention > 0
	}
	cfg := &l.consumer.config
	if broker, ok := l.consumer.runtime.config.Broker.(brokers.Lagger); ok {
		stats.Lag, stats.LagKnown = broker.Lag(cfg.Name, cfg.Topic)
	}
	return stats
}

// observeParked is what telemetry reads of the consumer's parked keys. One that waits for a time waits for nobody.
func (l *line) observeParked(context.Context) (telemetry.BacklogStats, error) {
	n, known := l.consumer.Parked()
	if !known {
		return telemetry.BacklogStats{}, fmt.Errorf("consumer %s: what is parked was not counted yet", l.consumer.config.Name)
	}
	return telemetry.BacklogStats{Keys: int64(n.Keys - n.Delayed), Depth: int64(n.Messages)}, nil
}

// observe is what telemetry reads of the outbox. It does no I/O.
func (l *relay) observe(context.Context) (telemetry.OutboxStats, error) {
	s := l.relay.Load().Stats()
	return telemetry.OutboxStats{
		Depth: int64(s.Backlog.Rows), Oldest: s.Oldest, Dead: int64(s.Backlog.Dead), Delayed: int64(s.Backlog.Delayed),
		Buckets: s.Buckets, Relays: s.Relays, Lost: s.Lost,
	}, nil
}

// published is told of every publish of a relay.
func (r *Runtime) published(next func(outbox.Published)) func(outbox.Published) {
	return func(p outbox.Published) {
		if p.Err == nil && p.Age > 0 {
			r.telemetry.OutboxPublished(context.Background(), p.Topic, p.Age)
		}
		if next != nil {
			next(p)
		}
	}
}

// observeInbox asks the inbox's database.
func (r *Runtime) observeInbox(ctx context.Context, db inbox.Observed) (telemetry.InboxStats, error) {
	s, err := db.Stats(ctx)
	if err != nil {
		return telemetry.InboxStats{}, err
	}
	stats := telemetry.InboxStats{Claims: s.Claims, Oldest: s.Oldest}
	if r.config.InboxRetention != Off {
		stats.Margin, stats.MarginKnown = s.Margin(r.config.InboxRetention, r.horizon(db)), true
	}
	return stats, nil
}

// horizon is the oldest redelivery that db's consumers can have.
func (r *Runtime) horizon(db inbox.Database) (oldest inbox.Horizon) {
	caps := r.config.Broker.Capabilities()
	for _, c := range r.consumers {
		if h := c.horizon(caps); contains(c.databases(), db) && h.Total() > oldest.Total() {
			oldest = h
		}
	}
	return oldest
}

// horizon is the oldest redelivery that the consumer can have.
func (c *Consumer) horizon(caps brokers.Capabilities) inbox.Horizon {
	retry, delays := c.config.Retry.Budget(), c.config.Retry.Delays(c.config.MaxHold)
	return inbox.Horizon{
		Broker:      caps.Retention,
		Retry:       retry + min(delays, math.MaxInt64-retry),
		DeadLetters: c.runtime.config.DeadLetterRetention,
	}
}
