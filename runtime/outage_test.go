package runtime_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/runtime"
)

func TestD6DatabaseOutageOnJetStreamAndSQLite(t *testing.T) {
	// As TestD6OutageUnderLoad, on the embedded default: effects in a database, deliveries from a real server.
	// How long it is away is counted in probes.
	quiet := slog.New(slog.DiscardHandler)
	broker, err := embedded.New(embedded.Config{Dir: t.TempDir(), Logger: quiet}, jetstream.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := broker.Close(); err != nil {
			t.Errorf("close the broker: %v", err)
		}
	})
	b, store := newBench(t, func(c *runtime.Config) {
		c.Broker = broker
		c.Breaker = middleware.BreakerConfig{After: 20 * time.Millisecond, ProbeDelay: 5 * time.Millisecond, MaxProbeDelay: 40 * time.Millisecond}
	}), openStore(t)
	b.broker = broker

	var down atomic.Bool
	var running, together atomic.Int64
	c := b.rt.Consumer("billing", "orders")
	runtime.HandleTx(c, "order.placed", store, func(ctx context.Context, tx *sql.Tx, o order) error {
		if running.Add(1) > 1 {
			together.Add(1)
		}
		defer running.Add(-1)
		if down.Load() {
			return fmt.Errorf("insert: %w", driver.ErrBadConn)
		}
		return insertEffect(ctx, tx, o)
	})
	const n, keys = 400, 20
	want := map[string][]string{}
	load := func(from, to int) {
		for i := from; i < to; i++ {
			key, id := fmt.Sprintf("key-%02d", i%keys), fmt.Sprintf("key-%02d/%04d", i%keys, i)
			want[key] = append(want[key], id)
			b.publish("orders", placed(t, id, event.WithKey(key)))
		}
	}
	load(0, n/2)
	b.start()
	b.eventually("some are handled", func() bool { return c.Stats().Effects > n/10 })
	down.Store(true)
	b.eventually("the breaker opens", func() bool { return c.Breaker().State != middleware.BreakerClosed })
	load(n/2, n)
	b.eventually("some probes have failed", func() bool { return c.Breaker().Probes >= 10 })
	down.Store(false)
	// A slow machine is no fault, as long as it goes on.
	for seen := int64(0); seen < n; {
		b.eventually(fmt.Sprintf("more than %d of %d are handled, with the breaker %+v", seen, n, c.Breaker()),
			func() bool { return c.Stats().Effects > seen })
		seen = c.Stats().Effects
	}
	b.eventually("the breaker is closed", func() bool { return c.Breaker().State == middleware.BreakerClosed })
	b.mustStop()

	if s := c.Stats(); s.DeadLettered != 0 {
		t.Errorf("stats are %+v, want no dead letter", s)
	}
	if together.Load() > 0 {
		t.Errorf("%d attempts ran beside another, want one at a time on SQLite", together.Load())
	}
	got := map[string][]string{}
	for _, id := range effects(t, store) {
		got[id[:6]] = append(got[id[:6]], id)
	}
	for key, ids := range want {
		if !slices.Equal(got[key], ids) {
			t.Errorf("%s: effects %v, want %v", key, got[key], ids)
		}
	}
}
