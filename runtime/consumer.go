package runtime

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
)

// AnyType registers a handler for every message that has no handler of its own type.
const AnyType = "*"

// Consumer is one subscription, one inbox scope and one stable name. It routes by event type, so that
// messages of several types keep their order within a key. Register its handlers before Run.
type Consumer struct {
	runtime *Runtime
	config  ConsumerConfig
	routes  map[string]*route
	counts  counts
	errs    []error

	operator operator
	parker   *parking.Parker // nil: it does not park
	released atomic.Pointer[parking.Source]
}

// ConsumerConfig describes a consumer. Name and Topic are required.
type ConsumerConfig struct {
	// Name is stable for the life of the service: the broker's group and the inbox's scope have this
	// name, so a changed name is a new consumer that sees every message again. Letters, digits, '.',
	// '_' and '-'; not one that ends in .REDRIVE or .PARKED.
	Name string

	// Topic is what it reads. What fails on a dead-letter topic is not dead-lettered again: it is
	// delivered again until it succeeds.
	Topic string

	// Policy overrides the runtime's, field by field; its Middleware runs inside the runtime's.
	Policy

	// Park keeps the order of a key whose message failed for good: that message and the later ones of its key are
	// parked in the inbox database until an operator releases the key (headrace park, or the store's
	// Parking()); other keys go on. The message is dead-lettered as well, to be found. It costs one more
	// round trip to the database for each message. All handlers must be of HandleTx, on one database.
	// Default nil: later messages of the key are handled without the one that failed.
	Park *parking.Policy

	// Key gives the lane of a message: equal keys run in order, one at a time. It must be pure.
	// Default ordering.DefaultKey: the broker's key, else ce_partitionkey, else ce_subject.
	Key func(*message.Message) string

	// ID gives the identity of a message where a natural key serves better than the producer's id,
	// such as an order number. It must be pure. An empty result falls back to event.Identify.
	ID func(*message.Message) string

	// Type gives the event type of a message that is not a CloudEvent. It must be pure.
	// Default: such a message has the type "", and only an AnyType handler gets it.
	Type func(*message.Message) string
}

// Consumer registers a consumer with the runtime's own policy.
// A bad name or topic, or a second consumer of that name, is reported by Run.
func (r *Runtime) Consumer(name, topic string) *Consumer {
	return r.ConsumerWith(ConsumerConfig{Name: name, Topic: topic})
}

// ConsumerWith registers a consumer with settings of its own.
// What is wrong with them is reported by Run.
func (r *Runtime) ConsumerWith(cfg ConsumerConfig) *Consumer {
	c := &Consumer{runtime: r, config: cfg, routes: map[string]*route{}}
	owner := fmt.Sprintf("consumer %q", cfg.Name)
	if !namePattern.MatchString(cfg.Name) {
		c.reject(fmt.Errorf("%s: Name is %q: want 1 to 128 letters, digits, '.', '_' or '-'", owner, cfg.Name))
	}
	for _, own := range []string{poison.RedriveSuffix, parkedSource} {
		if strings.HasSuffix(cfg.Name, own) {
			c.reject(fmt.Errorf("%s: Name is %q: the names that end in %q are the runtime's own", owner, cfg.Name, own))
		}
	}
	if cfg.Topic == "" {
		c.reject(fmt.Errorf("%s: Topic is %q: want the topic it reads", owner, cfg.Topic))
	}
	if err := cfg.Policy.validate(owner); err != nil {
		c.reject(err)
	}
	c.config.Policy = cfg.Policy.over(r.config.Policy)

	if other := r.enlist(c); other != nil {
		c.reject(fmt.Errorf("%s was registered twice, for the topics %q and %q: give each its own name",
			owner, other.config.Topic, cfg.Topic))
	}
	return c
}

// enlist adds c to the consumers of a runtime that does not run yet. It returns one that has c's name.
func (r *Runtime) enlist(c *Consumer) (other *Consumer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		r.stop(fmt.Errorf("consumer %q was registered after Run had begun", c.config.Name))
		return nil
	}
	for _, o := range r.consumers {
		if o.config.Name == c.config.Name {
			other = o
		}
	}
	r.consumers = append(r.consumers, c)
	return other
}

// Name returns the consumer's name.
func (c *Consumer) Name() string { return c.config.Name }

// reject keeps a wiring mistake for Run to report. One that is made while Run runs ends it.
func (c *Consumer) reject(err error) {
	c.runtime.mu.Lock()
	defer c.runtime.mu.Unlock()
	if c.runtime.started {
		c.runtime.stop(err)
		return
	}
	c.errs = append(c.errs, err)
}

// check returns every wiring mistake of the consumer.
func (c *Consumer) check() error {
	errs := c.errs
	if len(c.routes) == 0 {
		errs = append(errs, fmt.Errorf("consumer %q has no handler: register one with Handle, HandleTx or HandleMessage", c.config.Name))
	}
	if r := c.routes[AnyType]; r != nil && r.whole && len(c.routes) > 1 {
		errs = append(errs, fmt.Errorf("consumer %q handles dead letters and %d other types: give these a consumer of their own",
			c.config.Name, len(c.routes)-1))
	}
	if w := first(c.config.Window, defaultWindow); c.config.Concurrency > w {
		errs = append(errs, fmt.Errorf("consumer %q: Concurrency is %d: it is above Window, %d", c.config.Name, c.config.Concurrency, w))
	}
	return errors.Join(append(errs, c.checkParking()...)...)
}

// databases returns the distinct inbox databases of the consumer's handlers.
func (c *Consumer) databases() []inbox.Database {
	var dbs []inbox.Database
	for _, r := range c.routes {
		if r.database != nil && !contains(dbs, r.database) {
			dbs = append(dbs, r.database)
		}
	}
	return dbs
}

// transactions is how many messages the consumer's stores allow at once, 0 without a limit: the fewest of any handler, also where
// one handler's messages share transactions and another's on the same store do not.
func (c *Consumer) transactions() (fewest int) {
	for _, r := range c.routes {
		if r.database == nil {
			continue
		}
		if n := r.database.MaxConcurrency(); n > 0 && (fewest == 0 || n < fewest) {
			fewest = n
		}
	}
	return fewest
}

func contains(dbs []inbox.Database, db inbox.Database) bool {
	return slices.ContainsFunc(dbs, func(d inbox.Database) bool { return inbox.Same(d, db) })
}
