// Package testconsumer is a service for tests of dead letters: one consumer on the runtime, whose effect is a row in a table, in the
// transaction of its inbox.
package testconsumer

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

// limit bounds the start and the end of the service.
const limit = 60 * time.Second

// Consumer runs until its test ends. It is safe for concurrent use.
type Consumer struct {
	db    *sql.DB
	table string

	mu    sync.Mutex
	fails func(id string) error
	runs  map[string]int
}

// Start makes the table for effects and runs a consumer of the events "order.placed" on topic.
func Start(t testing.TB, b brokers.Broker, store *sqlstore.Store, name, topic, table string) *Consumer {
	t.Helper()
	return StartParking(t, b, store, name, topic, table, nil)
}

// StartParking is Start of a consumer that parks by policy, if there is one.
func StartParking(t testing.TB, b brokers.Broker, store *sqlstore.Store, name, topic, table string, policy *parking.Policy) *Consumer {
	t.Helper()
	c := &Consumer{db: store.DB(), table: table, runs: map[string]int{}}
	if _, err := c.db.ExecContext(t.Context(), "CREATE TABLE "+table+" (id VARCHAR(255) NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	rt, err := runtime.New(runtime.Config{Service: "billing", Broker: b, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	runtime.HandleTx(rt.ConsumerWith(runtime.ConsumerConfig{Name: name, Topic: topic, Park: policy}), "order.placed", store, c.handle)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the service: %v", err)
			}
		case <-time.After(limit):
			t.Errorf("the service did not end within %v", limit)
		}
	})
	select {
	case <-rt.Running():
	case <-time.After(limit):
		t.Fatalf("the service did not start within %v", limit)
	}
	return c
}

func (c *Consumer) handle(ctx context.Context, tx *sql.Tx, _ struct{}) error {
	e, _ := event.FromContext(ctx)
	c.mu.Lock()
	c.runs[e.ID]++
	fails := c.fails
	c.mu.Unlock()
	if fails != nil {
		if err := fails(e.ID); err != nil {
			return classify.Permanent(err)
		}
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s VALUES ('%s')", c.table, e.ID))
	return err
}

// Failing makes the handler fail where f returns an error, for good, which dead-letters the message. nil: it never fails.
func (c *Consumer) Failing(f func(id string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails = f
}

// Runs tells how often the handler ran for an event's id, whether it succeeded or not.
func (c *Consumer) Runs(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.runs[id]
}

// AllRuns tells how often the handler ran.
func (c *Consumer) AllRuns() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := 0
	for _, n := range c.runs {
		all += n
	}
	return all
}

// Effects tells how often each event took effect.
func (c *Consumer) Effects(t testing.TB) map[string]int {
	t.Helper()
	rows, err := c.db.QueryContext(t.Context(), "SELECT id, count(*) FROM "+c.table+" GROUP BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close() //nolint:errcheck // Err tells
	got := map[string]int{}
	for rows.Next() {
		var id string
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			t.Fatal(err)
		}
		got[id] = n
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return got
}
