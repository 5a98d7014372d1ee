package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/internal/flight"
)

// The defaults and bounds of [GroupConfig].
const (
	DefaultGroupMax      = 50
	MaxGroupMax          = 200
	DefaultGroupParallel = 1
)

// GroupConfig bounds what shares one transaction. Zero values are the defaults.
type GroupConfig struct {
	// Max is how many messages share a transaction at most, 1 to [MaxGroupMax]. The default is
	// [DefaultGroupMax].
	Max int

	// Linger is how long the first message of a group waits for more, at most. Default 0: a group is what is
	// ready now, and it grows by itself while another one runs.
	Linger time.Duration

	// Parallel is how many groups are open at once; more of them use more of the database's processors. The
	// default is [DefaultGroupParallel]: two groups that change rows of each other's keys can deadlock, and a
	// group holds the locks of all its messages. Raise it for handlers that change only rows of their own key.
	Parallel int

	// OnSplit is told of each group that was rolled back, with the reason, before its messages run alone. For
	// logs and metrics: it must not block, and a panic of it is dropped. Default nil.
	OnSplit func(ctx context.Context, messages int, reason error)
}

// withDefaults returns c complete, or an error that names each bad field and its value.
func (c GroupConfig) withDefaults() (GroupConfig, error) {
	if c.Max == 0 {
		c.Max = DefaultGroupMax
	}
	if c.Parallel == 0 {
		c.Parallel = DefaultGroupParallel
	}
	var errs []error
	if c.Max < 1 || c.Max > MaxGroupMax {
		errs = append(errs, fmt.Errorf("inbox: GroupConfig.Max is %d: want 1 to %d", c.Max, MaxGroupMax))
	}
	if c.Linger < 0 {
		errs = append(errs, fmt.Errorf("inbox: GroupConfig.Linger is %v: want at least 0", c.Linger))
	}
	if c.Parallel < 1 {
		errs = append(errs, fmt.Errorf("inbox: GroupConfig.Parallel is %d: want at least 1", c.Parallel))
	}
	return c, errors.Join(errs...)
}

// GroupStore is a store that claims many messages in one transaction. The stores of this module do.
type GroupStore[Tx any] interface {
	Store[Tx]

	// OnceGroup is Once for many messages that share one transaction: it claims them all with one
	// statement, the first of the transaction, runs fn and commits. claims are valid, distinct and sorted
	// by consumer and id, as bytes, so that groups wait for each other and do not deadlock. isNew[i] tells
	// whether claims[i] was claimed; the others were committed before. Everything else is as with Once:
	// after an error nothing was committed, no claim either.
	OnceGroup(ctx context.Context, claims []Claim, fn func(ctx context.Context, tx Tx, isNew []bool) error) error
}

// Grouped returns store with group transactions: messages that are ready at the same moment share one
// transaction, one claim statement and one COMMIT. Their handlers run one after another in it, in one
// goroutine, each with its own context. It is for handlers of the plain HandleTx:
//
//	runtime.HandleTx(orders, "order.placed", inbox.Grouped(store, inbox.GroupConfig{}), place)
//
// A group commits whole or not at all. When a handler fails, panics, or its context ends, or the COMMIT
// fails, all of it is rolled back, claims included, and each message runs alone in a transaction of its own.
// So a handler can run twice in one Once, and a neighbour counts no attempt. After a failure groups become
// smaller for a while. What is tried again after a failure of its own (attempt 2 and later) never joins one.
//
// A handler returns the error of a statement that has failed, as ever: on SQLite and MySQL some failures end the transaction for all of the
// group (an interrupted write, a deadlock), and on SQLite what later handlers write then is committed by itself before the group fails.
//
// Messages of one key are never in one group under the runtime, which runs one at a time. A handler that
// hangs holds its group. A message whose context ends while it waits leaves.
//
// Handlers that share a Grouped store share its groups: make one, and give it to all of them. Its
// MaxConcurrency is that of messages: (Parallel + 1) x Max, so that a group fills while others run; let the
// consumer's Concurrency be as large, and give the same consumer no plain handler of the store, whose limit would
// hold for both. Advance and the outbox take the transaction as ever.
//
// It panics on a bad config and on a store that is no [GroupStore].
func Grouped[Tx any](store Store[Tx], config GroupConfig) Store[Tx] {
	groups, err := asGroupStore(store)
	if err != nil {
		panic(err)
	}
	config, err = config.withDefaults()
	if err != nil {
		panic(err)
	}
	return &grouped[Tx]{
		Store: store,
		collector: newCollector(groups, config,
			func(f func(context.Context, Tx) error) func(context.Context, Tx) error { return f },
			func(fresh []*member[Tx, func(context.Context, Tx) error], turn turnFunc[Tx, func(context.Context, Tx) error]) error {
				for _, m := range fresh {
					if err := turn(m, m.value, false); err != nil {
						return err
					}
				}
				return nil
			}),
	}
}

func asGroupStore[Tx any](store Store[Tx]) (GroupStore[Tx], error) {
	if store == nil {
		return nil, errors.New("inbox: the store of the groups is nil")
	}
	if m, ok := store.(interface{ groups() bool }); ok && !m.groups() {
		return nil, errors.New("inbox: the store under the mapped one is no inbox.GroupStore: it cannot claim many messages at once")
	}
	g, ok := store.(GroupStore[Tx])
	if !ok {
		return nil, fmt.Errorf("inbox: %T is no inbox.GroupStore: it cannot claim many messages at once", store)
	}
	return g, nil
}

type grouped[Tx any] struct {
	Store[Tx]
	collector *collector[Tx, func(context.Context, Tx) error]
}

func (g *grouped[Tx]) unmapped() Database { return g.Store }

func (g *grouped[Tx]) again() bool { return true }

// runsAgain tells whether a store's Once can call its function twice.
func runsAgain(d Database) bool {
	for {
		if _, ok := d.(interface{ again() bool }); ok {
			return true
		}
		inner, ok := under(d)
		if !ok {
			return false
		}
		d = inner
	}
}

// MaxConcurrency is that of messages.
func (g *grouped[Tx]) MaxConcurrency() int { return g.collector.maxConcurrency() }

// Once implements [Store].
func (g *grouped[Tx]) Once(ctx context.Context, c Claim, fn func(context.Context, Tx) error) (bool, error) {
	if err := c.Validate(); err != nil {
		return false, err
	}
	f := flight.From(ctx)
	if f != nil && f.Attempt > 1 {
		return g.Store.Once(ctx, c, fn)
	}
	return g.collector.once(ctx, f, c, fn, nil)
}
