package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
)

// ErrNoConsumer says that a function of this package ran outside of a consumer, so that it does not know
// whose inbox to use. It is a mistake in the wiring: run it under runtime.HandleTx or [Handler].
var ErrNoConsumer = errors.New("inbox: the context belongs to no consumer; use runtime.HandleTx or inbox.Handler")

// Run makes msg take effect once: it runs fn in a transaction of store, under the consumer and the id
// that ctx's delivery has, and gives the receipt that allows the ack. A duplicate is a success without a
// call of fn. With a [Grouped] store fn can run twice in one call: what it changes besides tx is to be the
// same. The runtime's HandleTx is made of it; on a router of your own use [Handler].
func Run[Tx any](ctx context.Context, store Store[Tx], msg *message.Message, fn func(context.Context, Tx) error) error {
	f := flight.From(ctx)
	if f == nil || f.Consumer == "" {
		return classify.Permanent(ErrNoConsumer)
	}
	if fault := f.Fault(); fault != nil {
		fn = failing(fn, fault)
	}
	return run(ctx, f, f.Consumer, store, msg, fn)
}

// failing is fn with a failure between its success and the COMMIT, which a test has planned.
func failing[Tx any](fn func(context.Context, Tx) error, fault func(context.Context) error) func(context.Context, Tx) error {
	return func(ctx context.Context, tx Tx) error {
		if err := fn(ctx, tx); err != nil {
			return err
		}
		return fault(ctx)
	}
}

func run[Tx any](ctx context.Context, f *flight.Flight, consumer string, store Store[Tx], msg *message.Message, fn func(context.Context, Tx) error) error {
	return claimed(f, consumer, msg, func(c Claim) (bool, error) { return store.Once(ctx, c, fn) })
}

// claimed runs once under the message's claim and gives the receipt of what came of it.
func claimed(f *flight.Flight, consumer string, msg *message.Message, once func(Claim) (bool, error)) error {
	if f.ID == "" {
		id, err := event.Identify(msg, f.Topic)
		if err != nil {
			return fmt.Errorf("inbox: identify the message for %q: %w", consumer, err)
		}
		f.ID = id
	}
	// SkipStale gives its receipt before the COMMIT. Only a confirmed COMMIT lets it stand: after an error,
	// a panic or Goexit nothing was stored, and there must be no receipt.
	confirmed := false
	defer func() {
		if !confirmed {
			flight.Give(f, flight.NoReceipt)
		}
	}()
	isNew, err := once(Claim{Consumer: consumer, ID: f.ID})
	if err != nil {
		return err
	}
	confirmed = true
	switch {
	case !isNew:
		flight.Give(f, flight.Duplicate)
	case f.Receipt() != flight.Stale && f.Receipt() != flight.Parked:
		flight.Give(f, flight.Committed)
	}
	return nil
}

// Handler is [Run] for a Watermill router of your own: it makes each message take effect once for
// consumer, a stable name that no other handler of the store has. Return its errors to a retry
// middleware; each attempt has a transaction of its own. The router acks a nil error, duplicates
// included.
//
// It panics on a nil store or fn and on an empty consumer.
func Handler[Tx any](store Store[Tx], consumer string, fn func(ctx context.Context, tx Tx, msg *message.Message) error) message.NoPublishHandlerFunc {
	switch {
	case store == nil:
		panic("inbox.Handler: store is nil")
	case fn == nil:
		panic("inbox.Handler: fn is nil")
	}
	if err := validateName("consumer", consumer); err != nil {
		panic("inbox.Handler: " + err.Error())
	}
	return func(msg *message.Message) error {
		f := flight.Ensure(msg)
		if f.Consumer == "" {
			f.Consumer = consumer
		}
		if !runsAgain(store) {
			return run(msg.Context(), f, consumer, store, msg, func(ctx context.Context, tx Tx) error { return fn(ctx, tx, msg) })
		}
		if f.Keep(msg) {
			defer f.Forget()
		}
		ran := false
		return run(msg.Context(), f, consumer, store, msg, func(ctx context.Context, tx Tx) error {
			if ran {
				f.Restore(msg)
			}
			ran = true
			return fn(ctx, tx, msg)
		})
	}
}
