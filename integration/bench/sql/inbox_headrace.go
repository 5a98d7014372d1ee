package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// posting is an event: an amount for an account.
type posting struct {
	Account int   `json:"account"`
	Amount  int64 `json:"amount"`
}

var errDuplicate = errors.New("the message is a duplicate")

func messageID(i int) string { return fmt.Sprintf("ce:/bench/shop 019358e6-43c1-7b8e-8000-%012d", i) }

// counter is what the hand-written loops share.
type counter struct {
	next, done atomic.Int64
	first      atomic.Pointer[error]
}

func (c *counter) failed(err error) { c.first.CompareAndSwap(nil, &err) }

func (c *counter) err() error {
	if p := c.first.Load(); p != nil {
		return *p
	}
	return nil
}

// exec waits for the effect's result, as most handlers do.
func exec(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	_, err := tx.Exec(ctx, sql, args...)
	return err
}

// handleTx is the whole runtime with one UPDATE for each message, in groups of at most group if that is above 0.
func handleTx(group, parallel int, do func(context.Context, pgx.Tx, string, ...any) error) func(context.Context, *inboxBench, int) (speed, error) {
	return func(ctx context.Context, b *inboxBench, inFlight int) (speed, error) {
		conns := inFlight
		if group > 0 {
			conns = parallel
		}
		return b.consume(ctx, conns, inFlight, func(c *runtime.Consumer, store *pgxstore.Store, splits *atomic.Int64) {
			tx := inbox.Store[pgx.Tx](store)
			if group > 0 {
				tx = inbox.Grouped(store, inbox.GroupConfig{Max: group, Parallel: parallel, OnSplit: func(context.Context, int, error) { splits.Add(1) }})
			}
			effect := b.effect()
			runtime.HandleTx(c, "posted", tx, func(ctx context.Context, tx pgx.Tx, p posting) error {
				return do(ctx, tx, effect, p.Amount, p.Account)
			})
		})
	}
}

// handleBatch is the whole runtime with one UPDATE for each batch.
func handleBatch(group, parallel int) func(context.Context, *inboxBench, int) (speed, error) {
	return func(ctx context.Context, b *inboxBench, inFlight int) (speed, error) {
		return b.consume(ctx, parallel, inFlight, func(c *runtime.Consumer, store *pgxstore.Store, splits *atomic.Int64) {
			effects := b.effects()
			config := inbox.GroupConfig{Max: group, Parallel: parallel, OnSplit: func(context.Context, int, error) { splits.Add(1) }}
			runtime.HandleBatch(c, "posted", store, config, func(ctx context.Context, tx pgx.Tx, events []runtime.BatchEvent[posting]) error {
				amounts, accounts := make([]int64, len(events)), make([]int32, len(events))
				for i, e := range events {
					amounts[i], accounts[i] = e.Value.Amount, int32(e.Value.Account)
				}
				_, err := tx.Exec(ctx, effects, amounts, accounts)
				return err
			})
		})
	}
}

// consume runs a consumer with its store.
func (b *inboxBench) consume(ctx context.Context, conns, inFlight int, register func(*runtime.Consumer, *pgxstore.Store, *atomic.Int64)) (speed, error) {
	pool, err := b.pool(ctx, conns)
	if err != nil {
		return speed{}, err
	}
	defer pool.Close()
	store, err := pgxstore.New(pool, pgxstore.WithSchema(b.schema))
	if err != nil {
		return speed{}, err
	}
	return consumed(ctx, b.n, inFlight, func(c *runtime.Consumer, splits *atomic.Int64) { register(c, store, splits) }, b.rate)
}

// consumed runs a consumer of n messages while measure watches its effects.
func consumed(ctx context.Context, n, inFlight int, register func(*runtime.Consumer, *atomic.Int64), measure func(context.Context, func() int64) (speed, error)) (speed, error) {
	rt, err := runtime.New(runtime.Config{
		Service: "bench", Broker: &source{n: n}, Logger: slog.New(slog.DiscardHandler),
		TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider(),
		InboxRetention: runtime.Off,
		Policy:         runtime.Policy{Concurrency: inFlight, Window: 2 * inFlight},
	})
	if err != nil {
		return speed{}, err
	}
	c := rt.Consumer("bench.orders", "orders")
	var splits atomic.Int64
	register(c, &splits)
	goruntime.GC() // what the last one left
	runCtx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(runCtx) }()
	select {
	case <-rt.Running():
	case err := <-ended:
		return speed{}, err
	}
	r, err := measure(ctx, func() int64 { return c.Stats().Effects })
	stop()
	if err := cmp.Or(<-ended, err); err != nil {
		return speed{}, err
	}
	if s := c.Stats(); s.Retries > 0 || s.Duplicates > 0 || splits.Load() > 0 {
		return speed{}, fmt.Errorf("%d retries, %d duplicates, %d groups were split; want none: %+v", s.Retries, s.Duplicates, splits.Load(), s)
	}
	return r, nil
}
