// Package testconsumer is a consumer for tests of dead letters: an inbox, dead letters and a redrive topic, made of Headrace's stages on
// a stock Watermill router. Its effect is a row in a table, in the transaction of its inbox.
package testconsumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

// Consumer runs until its test ends. It is safe for concurrent use.
type Consumer struct {
	db    *sql.DB
	table string

	mu    sync.Mutex
	fails func(id string) error
	runs  map[string]int
}

// Start makes the table for effects, subscribes the consumer to topic and to its redrive topic, and runs it.
func Start(t testing.TB, b brokers.Broker, store *sqlstore.Store, name, topic, table string) *Consumer {
	t.Helper()
	c := &Consumer{db: store.DB(), table: table, runs: map[string]int{}}
	if _, err := c.db.ExecContext(t.Context(), "CREATE TABLE "+table+" (id VARCHAR(255) NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	dead, err := poison.New(poison.Config{Consumer: name, Publisher: pub})
	if err != nil {
		t.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Second}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	router.AddMiddleware(
		middleware.Correlation(middleware.CorrelationConfig{Source: "/" + name, Consumer: name, Identify: func(m *message.Message) string {
			from := topic
			if r := poison.RedriveOf(m.Context()); r != nil {
				if id := r.Identify(); id != "" {
					return id
				}
				from = r.Record.Topic
			}
			id, _ := event.Identify(m, from) // an empty one is refused by the inbox
			return id
		}}),
		dead.Middleware,
	)
	for _, read := range []string{topic, poison.RedriveTopic(name)} {
		group := name
		if read != topic {
			group = poison.RedriveTopic(name)
		}
		sub, err := b.Subscriber(brokers.Subscription{Consumer: group, Topic: read, Window: 1})
		if err != nil {
			t.Fatal(err)
		}
		if read != topic {
			if sub, err = message.MessageTransformSubscriberDecorator(poison.Restore)(sub); err != nil {
				t.Fatal(err)
			}
		}
		router.AddConsumerHandler(read, read, sub, inbox.Handler(store, name, c.handle))
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	t.Cleanup(func() {
		if err := errors.Join(router.Close(), <-ended, pub.Close()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *Consumer) handle(ctx context.Context, tx *sql.Tx, m *message.Message) error {
	id := m.Metadata[event.MetaID]
	c.mu.Lock()
	c.runs[id]++
	fails := c.fails
	c.mu.Unlock()
	if fails != nil {
		if err := fails(id); err != nil {
			return classify.Permanent(err)
		}
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s VALUES ('%s')", c.table, id))
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

// Effects tells how often each event took effect.
func (c *Consumer) Effects(t testing.TB) map[string]int {
	t.Helper()
	rows, err := c.db.QueryContext(t.Context(), "SELECT id, count(*) FROM "+c.table+" GROUP BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
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
