package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
)

// Batcher runs one handler for many messages at once, in one transaction that holds all their claims: for
// effects that are one statement for a whole set. The rules are those of [Grouped]: it takes what is ready
// now, it commits whole or not at all, and when the handler fails, each message runs alone, as a batch of
// one. V is what the handler gets of a message. The runtime's HandleBatch is made of it.
//
// It is also the [Database] of its store, with a MaxConcurrency of messages.
type Batcher[Tx, V any] struct {
	Database
	store     Store[Tx]
	collector *collector[Tx, V]
}

// NewBatcher returns a batcher whose handler is fn. fn's values are in the order of their arrival, at least
// one; the slice is fn's own. Its context belongs to no message, and ends when that of any of them does.
//
// Its error names what is wrong with the config, or says that store is no [GroupStore].
func NewBatcher[Tx, V any](store Store[Tx], config GroupConfig, fn func(ctx context.Context, tx Tx, values []V) error) (*Batcher[Tx, V], error) {
	groups, err := asGroupStore(store)
	if err == nil {
		config, err = config.withDefaults()
	}
	if err == nil && fn == nil {
		err = errors.New("inbox: the function of the batches is nil")
	}
	if err != nil {
		return nil, err
	}
	return &Batcher[Tx, V]{
		Database: store,
		store:    store,
		collector: newCollector(groups, config,
			func(v V) func(context.Context, Tx) error {
				return func(ctx context.Context, tx Tx) error { return fn(flight.Without(ctx), tx, []V{v}) }
			},
			func(fresh []*member[Tx, V], turn turnFunc[Tx, V]) error {
				values := make([]V, len(fresh))
				for i, m := range fresh {
					values[i] = m.value
				}
				return turn(fresh[0], func(ctx context.Context, tx Tx) error { return fn(flight.Without(ctx), tx, values) }, true)
			}),
	}, nil
}

func (b *Batcher[Tx, V]) unmapped() Database { return b.Database }

// MaxConcurrency is how many messages can be under way: a batch fills while others run.
func (b *Batcher[Tx, V]) MaxConcurrency() int { return b.collector.maxConcurrency() }

// Run makes msg take effect once as [Run] does, in a batch. It blocks until the batch was committed. value
// makes what the handler gets of msg. It is called before anything else, and again when a batch was rolled
// back and msg runs alone: what that handler did to its value is no part of the message.
func (b *Batcher[Tx, V]) Run(ctx context.Context, msg *message.Message, value func() (V, error)) error {
	f := flight.From(ctx)
	if f == nil || f.Consumer == "" {
		return classify.Permanent(ErrNoConsumer)
	}
	v, err := value()
	if err != nil {
		return err
	}
	return claimed(f, f.Consumer, msg, func(c Claim) (bool, error) {
		if fault := f.Fault(); fault != nil {
			return b.store.Once(ctx, c, failing(b.collector.alone(v), fault))
		}
		if f.Attempt > 1 {
			return b.store.Once(ctx, c, b.collector.alone(v))
		}
		if err := c.Validate(); err != nil {
			return false, err
		}
		return b.collector.once(ctx, f, c, v, value)
	})
}

// OnceGroup implements [GroupStore] where the store below does.
func (m *mapped[A, B]) OnceGroup(ctx context.Context, claims []Claim, fn func(context.Context, B, []bool) error) error {
	inner, ok := m.inner.(GroupStore[A])
	if !ok {
		return fmt.Errorf("inbox: OnceGroup of a mapped store: %T is no inbox.GroupStore", m.inner)
	}
	return inner.OnceGroup(ctx, claims, func(ctx context.Context, tx A, isNew []bool) error {
		return fn(&mappedContext[A, B]{Context: ctx, store: m, tx: tx}, m.f(tx), isNew)
	})
}

// groups tells whether the store below can do OnceGroup.
func (m *mapped[A, B]) groups() bool {
	if inner, ok := m.inner.(interface{ groups() bool }); ok {
		return inner.groups()
	}
	_, ok := m.inner.(GroupStore[A])
	return ok
}
