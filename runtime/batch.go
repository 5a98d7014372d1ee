package runtime

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/flight"
)

// BatchEvent is one event of a batch.
type BatchEvent[T any] struct {
	// Value is the decoded event.
	Value T
	// Envelope has its attributes, and its data as they were sent.
	Envelope event.Envelope

	message context.Context
}

// Context returns ctx, which is the batch's, as the context of this event's message: what event.New makes with
// it, and outbox.Add writes with it, is caused by this event and has the same ids in every run. It ends with
// ctx.
func (e BatchEvent[T]) Context(ctx context.Context) context.Context {
	return batchContext{ctx, e.message}
}

// batchContext ends with the batch's and knows what the message's own does.
type batchContext struct {
	context.Context
	message context.Context
}

func (c batchContext) Value(key any) any {
	if v := c.message.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// HandleBatch registers fn for the events of one type and runs it for many of them at once, in one transaction
// of store that also holds their claims: for effects that are one statement for a whole set. A batch is what is
// ready now, at most cfg.Max events, in the order of their arrival and without duplicates; under the runtime no
// two of them have the same key. So the consumer's Concurrency bounds it as well, which can be as large as
// (cfg.Parallel + 1) x cfg.Max.
//
// A batch commits whole or not at all. When fn fails, panics or does not return in time, everything is rolled
// back and each event runs alone, as a batch of one: only what fails alone is retried or dead-lettered, and its
// neighbours count no attempt.
//
// The time limit is that of the whole run of fn. fn's context ends when that of any of the messages does, and
// belongs to none of them: use [BatchEvent.Context] for what is made for one event. The slice is fn's own.
func HandleBatch[Tx, T any](c *Consumer, eventType string, store inbox.Store[Tx], cfg inbox.GroupConfig, fn func(ctx context.Context, tx Tx, events []BatchEvent[T]) error) {
	if isNil(store) {
		c.reject(fmt.Errorf("consumer %q: the store of the handler for %q is nil", c.config.Name, eventType))
		return
	}
	if fn == nil {
		c.add(eventType, &route{isNil: true})
		return
	}
	batcher, err := inbox.NewBatcher(store, cfg, func(ctx context.Context, tx Tx, events []BatchEvent[T]) error {
		ctx = flight.WithAdds(ctx, flight.From(events[0].message))
		return c.limited(ctx, func(ctx context.Context) error { return inTime(ctx, fn(ctx, tx, events)) })
	})
	if err != nil {
		c.reject(fmt.Errorf("consumer %q: the handler for %q: %w", c.config.Name, eventType, err))
		return
	}
	c.add(eventType, &route{database: batcher, run: func(msg *message.Message) error {
		return batcher.Run(msg.Context(), msg, func() (BatchEvent[T], error) {
			v, ctx, err := decode[T](c, msg)
			if err != nil {
				return BatchEvent[T]{}, err
			}
			envelope, _ := event.FromContext(ctx)
			return BatchEvent[T]{Value: v, Envelope: envelope, message: ctx}, nil
		})
	}})
}
