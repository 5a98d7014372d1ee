package runtime

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
)

// parkedSource ends the name of the router's handler of a consumer's released messages.
const parkedSource = ".PARKED"

// parkable returns the store that parks for c, and true; or store itself if c does not park, or it cannot.
func parkable[Tx any](c *Consumer, eventType string, store inbox.Store[Tx]) (inbox.Store[Tx], bool) {
	if c.config.Park == nil {
		return store, false
	}
	own, err := parking.Wrap(store, c.config.Name, *c.config.Park)
	if err != nil {
		c.reject(fmt.Errorf("consumer %q: Park: the handler for %q: %w", c.config.Name, eventType, err))
		return store, true // one error is enough
	}
	if c.parker == nil {
		c.parker = own.Parker
	}
	return own, true
}

// checkParking refuses a consumer that parks and has a handler whose effect is in no inbox, or in another one: its
// messages would pass those of their key that are parked.
func (c *Consumer) checkParking() (errs []error) {
	if c.config.Park == nil {
		return nil
	}
	for eventType, r := range c.routes {
		if !r.parks {
			errs = append(errs, fmt.Errorf("consumer %q: Park is set, and the handler for %q is not one of HandleTx: without a transaction that holds the inbox nothing can be parked",
				c.config.Name, eventType))
		}
	}
	if n := len(c.databases()); n > 1 {
		errs = append(errs, fmt.Errorf("consumer %q: Park is set, and its handlers use %d databases: a key is parked in one", c.config.Name, n))
	}
	return errs
}

// park is poison's: nil if the consumer does not park.
func (c *Consumer) park() func(context.Context, poison.Record) error {
	if c.parker == nil {
		return nil
	}
	return c.parker.Park
}

// parked is the stage that holds what should be parked and has no room.
func (c *Consumer) parked() []message.HandlerMiddleware {
	if c.parker == nil {
		return nil
	}
	return []message.HandlerMiddleware{c.parker.Middleware}
}

// openParked opens the subscription to what was released of the consumer's parked messages.
func (l *line) openParked() error {
	c := l.consumer
	if c.parker == nil {
		return nil
	}
	src, err := c.parker.Source(c.runtime.config.Logger)
	if err != nil {
		return err
	}
	sub, err := l.intake.Decorate(src)
	if err != nil {
		return err
	}
	c.released.Store(src)
	l.sources = append(l.sources, source{name: c.config.Name + parkedSource, topic: c.config.Topic, subscriber: sub, brings: true})
	return nil
}

// Parked tells how much of the consumer is parked, in all replicas, as it was counted last; false while that is
// not known, or the consumer does not park. It does no I/O. Safe for concurrent use.
func (c *Consumer) Parked() (parking.Count, bool) {
	if src := c.released.Load(); src != nil {
		return src.Count()
	}
	return parking.Count{}, false
}
