package runtime

import (
	"context"
	"errors"
	"fmt"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/inbox"
)

// preflight checks everything that can be known before the first message: the wiring, the settings
// against what the broker and the databases can do, and the databases' schemas.
func (r *Runtime) preflight(ctx context.Context) error {
	var errs []error
	if len(r.consumers) == 0 && len(r.relays) == 0 {
		errs = append(errs, errors.New("the runtime has neither a consumer nor a relay: there is nothing to run"))
	}
	caps := r.config.Broker.Capabilities()
	for _, c := range r.consumers {
		errs = append(errs, c.check(), c.checkBroker(caps), c.checkPool())
	}
	errs = append(errs, r.checkFanOut(caps), r.checkDeadLetters())
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, db := range r.databases() {
		if err := db.Check(ctx); err != nil {
			return fmt.Errorf("check the inbox database: %w", err)
		}
	}
	for i, l := range r.relays {
		if isNil(l.source) {
			return fmt.Errorf("outbox relay %d: its source is nil: want store.Outbox()", i)
		}
		if _, err := l.source.Backlog(ctx, 1); err != nil {
			return fmt.Errorf("outbox relay %d: its tables cannot be read (was the store's Migrate called?): %w", i, err)
		}
	}
	r.warnLimits(ctx, caps)
	r.warnRetention(ctx, caps)
	return nil
}

// warnLimits tells of settings that the broker does not follow.
func (r *Runtime) warnLimits(ctx context.Context, caps brokers.Capabilities) {
	for _, c := range r.consumers {
		// A delivery can have all the attempts, or one: the delays that the broker keeps, restarts and crashes take one each.
		if attempts := c.config.Retry.Attempts(); caps.DeliveryLimit > 0 && attempts > caps.DeliveryLimit {
			r.config.Logger.WarnContext(ctx, "the broker may take a message away before its attempts are used up: raise its delivery limit, or lower Retry.MaxAttempts",
				"consumer", c.config.Name, "broker", caps.System, "attempts", attempts, "delivery_limit", caps.DeliveryLimit)
		}
		if caps.MaxUnacked > 0 && c.config.Concurrency > caps.MaxUnacked {
			r.config.Logger.WarnContext(ctx, "the broker gives fewer messages at once than the consumer's Concurrency",
				"consumer", c.config.Name, "broker", caps.System, "concurrency", c.config.Concurrency, "max_unacked", caps.MaxUnacked)
		}
	}
}

// checkBroker refuses a retry budget that outlasts the broker's patience.
func (c *Consumer) checkBroker(caps brokers.Capabilities) error {
	patience := holdLimit(caps)
	if patience == 0 {
		return nil
	}
	budget := c.config.Retry.Budget()
	if budget >= patience {
		return fmt.Errorf("consumer %q: Retry can hold a message for %v, but it is given back after %v, before the broker %q delivers it again after %v: lower Retry.MaxElapsed or MaxDelay",
			c.config.Name, budget, patience, caps.System, first(caps.PatienceLimit, caps.Patience))
	}
	if c.config.Timeout != Off && c.config.Timeout >= patience {
		return fmt.Errorf("consumer %q: Timeout is %v, but a message is given back after %v, before the broker %q delivers it again after %v: lower Timeout",
			c.config.Name, c.config.Timeout, patience, caps.System, first(caps.PatienceLimit, caps.Patience))
	}
	return nil
}

// checkPool refuses a concurrency above a store's pool, which looks like an outage under load (fault L5).
func (c *Consumer) checkPool() error {
	if n := c.transactions(); n > 0 && c.config.Concurrency > n {
		return fmt.Errorf("consumer %q: Concurrency is %d, but its store allows %d transactions at once: lower it or enlarge the pool",
			c.config.Name, c.config.Concurrency, n)
	}
	return nil
}

// checkFanOut refuses two consumers of one topic where the broker would share the messages among them.
func (r *Runtime) checkFanOut(caps brokers.Capabilities) error {
	if caps.FanOut {
		return nil
	}
	first := map[string]string{}
	for _, c := range r.consumers {
		if other, ok := first[c.config.Topic]; ok {
			return fmt.Errorf("consumers %q and %q both read topic %q, but the broker %q does not give each of them every message",
				other, c.config.Name, c.config.Topic, caps.System)
		}
		first[c.config.Topic] = c.config.Name
	}
	return nil
}

// warnRetention compares the inbox's memory with the oldest redelivery there can be.
func (r *Runtime) warnRetention(ctx context.Context, caps brokers.Capabilities) {
	if r.config.InboxRetention == Off {
		return
	}
	for _, c := range r.consumers {
		if len(c.databases()) == 0 {
			continue
		}
		if err := c.horizon(caps).Check(r.config.InboxRetention); err != nil {
			r.config.Logger.WarnContext(ctx, "a redelivery may be older than the inbox remembers",
				"consumer", c.config.Name, "error", err)
		}
	}
}

// databases returns the distinct databases of all consumers.
func (r *Runtime) databases() []inbox.Database {
	var dbs []inbox.Database
	for _, c := range r.consumers {
		for _, db := range c.databases() {
			if !contains(dbs, db) {
				dbs = append(dbs, db)
			}
		}
	}
	return dbs
}
