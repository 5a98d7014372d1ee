package runtime

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/poison"
)

// Handle registers fn for the events of one type. The event is decoded into T by the consumer's decoder;
// event.FromContext gives its envelope.
//
// Handle is at-least-once: a crash between fn's effect and the ack runs fn again. An effect outside a
// database needs a key of its own: event.MessageID(ctx) is the same for every delivery of the message.
func Handle[T any](c *Consumer, eventType string, fn func(context.Context, T) error) {
	c.add(eventType, &route{isNil: fn == nil, run: func(msg *message.Message) error {
		v, ctx, err := decode[T](c, msg)
		if err != nil {
			return err
		}
		return handled(ctx, c.limited(ctx, func(ctx context.Context) error { return fn(ctx, v) }))
	}})
}

// HandleTx registers fn for the events of one type and runs it in a transaction of store that also holds
// the claim of the message's id: its effect, the claim and what it adds with outbox.Add commit together
// or not at all, so that a message delivered twice takes effect once. fn neither commits nor rolls back.
//
// The time limit of fn starts after BEGIN and the claim. Each attempt has a transaction of its own. What is
// not done in time is rolled back, even if fn returns nil. With [inbox.Grouped] messages share transactions.
func HandleTx[Tx, T any](c *Consumer, eventType string, store inbox.Store[Tx], fn func(context.Context, Tx, T) error) {
	if isNil(store) {
		c.reject(fmt.Errorf("consumer %q: the store of the handler for %q is nil", c.config.Name, eventType))
		return
	}
	own, parks := parkable(c, eventType, store)
	c.add(eventType, &route{isNil: fn == nil, database: store, parks: parks, run: func(msg *message.Message) error {
		v, ctx, err := decode[T](c, msg)
		if err != nil {
			return err
		}
		ran := false
		return inbox.Run(ctx, own, msg, func(ctx context.Context, tx Tx) error {
			if ran { // in a group that was rolled back: what it did to its event is undone as well
				if v, _, err = event.Decode[T](c.config.Decoder, msg); err != nil {
					return err
				}
			}
			ran = true
			return c.limited(ctx, func(ctx context.Context) error { return inTime(ctx, fn(ctx, tx, v)) })
		})
	}})
}

// inTime refuses to commit what a handler has done that gave up quietly because its context had ended.
func inTime(ctx context.Context, err error) error {
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// HandleMessage registers fn for the raw messages of one type, or of [AnyType]. The message is the
// handler's own: acking it, or changing its metadata, changes nothing elsewhere. At-least-once, as Handle.
func HandleMessage(c *Consumer, eventType string, fn func(*message.Message) error) {
	c.add(eventType, &route{isNil: fn == nil, raw: true, run: func(msg *message.Message) error {
		ctx := msg.Context()
		return handled(ctx, c.limited(ctx, func(ctx context.Context) error {
			msg.SetContext(ctx)
			return fn(msg)
		}))
	}})
}

// HandlePublish registers a Watermill handler for the raw messages of one type, or of [AnyType], whose
// returned messages the runtime publishes to outTopic, confirmed, before it acks. If the publish fails
// the whole attempt has failed and may publish again: the messages need stable ids (event.New inside the
// handler gives them).
func HandlePublish(c *Consumer, eventType, outTopic string, fn message.HandlerFunc) {
	if outTopic == "" {
		c.reject(fmt.Errorf("consumer %q: the output topic of the handler for %q is empty", c.config.Name, eventType))
		return
	}
	c.add(eventType, &route{isNil: fn == nil, raw: true, run: func(msg *message.Message) error {
		ctx := msg.Context()
		return handled(ctx, c.limited(ctx, func(ctx context.Context) error {
			msg.SetContext(ctx)
			outputs, err := fn(msg)
			if err != nil || len(outputs) == 0 {
				return err
			}
			for _, out := range outputs {
				out.SetContext(ctx)
			}
			if err := c.runtime.Publisher().Publish(outTopic, outputs...); err != nil {
				return fmt.Errorf("publish %d outputs to %s: %w", len(outputs), outTopic, err)
			}
			return nil
		}))
	}})
}

// handled gives a plain handler's receipt if it returned nil.
func handled(ctx context.Context, err error) error {
	if err == nil {
		flight.Give(ctx, flight.Handled)
	}
	return err
}

// HandleDeadLetters registers fn for the dead letters of other consumers: c reads a dead-letter topic. Such a
// consumer has this one handler. fn gets what [poison.Parse] reads, whatever is wrong with the original. What
// is no dead letter, or makes fn fail, is not dead-lettered again but delivered again. At-least-once, as
// [Handle]; Record.ID is the same for every copy of a dead letter.
func HandleDeadLetters(c *Consumer, fn func(context.Context, poison.Record) error) {
	c.addDeadLetters(&route{isNil: fn == nil, run: func(msg *message.Message) error {
		record, err := poison.Parse(msg)
		if err != nil {
			return err
		}
		ctx := msg.Context()
		return handled(ctx, c.limited(ctx, func(ctx context.Context) error { return fn(ctx, record) }))
	}})
}

// HandleDeadLettersTx is [HandleDeadLetters] in a transaction of store, as [HandleTx]: each dead letter takes
// effect once.
func HandleDeadLettersTx[Tx any](c *Consumer, store inbox.Store[Tx], fn func(context.Context, Tx, poison.Record) error) {
	if isNil(store) {
		c.reject(fmt.Errorf("consumer %q: the store of the handler for dead letters is nil", c.config.Name))
		return
	}
	c.addDeadLetters(&route{isNil: fn == nil, database: store, run: func(msg *message.Message) error {
		record, err := poison.Parse(msg)
		if err != nil {
			return err
		}
		ran := false
		return inbox.Run(msg.Context(), store, msg, func(ctx context.Context, tx Tx) error {
			if ran { // as with HandleTx
				if record, err = poison.Parse(msg); err != nil {
					return err
				}
			}
			ran = true
			return c.limited(ctx, func(ctx context.Context) error { return inTime(ctx, fn(ctx, tx, record)) })
		})
	}})
}

// addDeadLetters registers r for whatever comes. A dead letter has the metadata of its original, which tell
// nothing of the dead letter itself: its type and its id are not theirs.
func (c *Consumer) addDeadLetters(r *route) {
	r.whole = true
	c.add(AnyType, r)
	if c.config.ID == nil {
		c.config.ID = func(msg *message.Message) string {
			record, err := poison.Parse(msg)
			if err != nil {
				return ""
			}
			return record.ID
		}
	}
}

// route runs the messages of one type. Its run gives the receipt.
type route struct {
	run      func(*message.Message) error
	raw      bool           // it gets the message itself, and may change it
	whole    bool           // it takes every message of the topic, valid or not
	database inbox.Database // of HandleTx
	parks    bool           // its transaction can park
	isNil    bool
}

func (c *Consumer) add(eventType string, r *route) {
	switch {
	case c.runtime.hasStarted():
		c.reject(fmt.Errorf("consumer %q: the handler for %q was registered after Run had begun", c.config.Name, eventType))
	case r.isNil:
		c.reject(fmt.Errorf("consumer %q: the handler for %q is nil", c.config.Name, eventType))
	case eventType == "":
		c.reject(fmt.Errorf("consumer %q: a handler's event type is %q: name one, or AnyType", c.config.Name, eventType))
	case c.routes[eventType] != nil:
		c.reject(fmt.Errorf("consumer %q: two handlers for %q: one type has one handler", c.config.Name, eventType))
	default:
		c.routes[eventType] = r
	}
}

// decode gives the event's value and a context with its envelope.
func decode[T any](c *Consumer, msg *message.Message) (T, context.Context, error) {
	return event.DecodeContext[T](c.config.Decoder, msg)
}

// limited runs f within the handler's time limit.
func (c *Consumer) limited(ctx context.Context, f func(context.Context) error) error {
	if c.config.Timeout == Off {
		return f(ctx)
	}
	return middleware.WithTimeout(ctx, c.config.Timeout, f)
}
