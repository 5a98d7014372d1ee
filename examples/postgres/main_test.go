package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = 30 * time.Second

// database makes a schema of the test's own and points DATABASE_URL to it.
func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	base := testserver.Postgres(t)
	name := "example_" + strings.ToLower(rand.Text()[:12])
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	pool, err := pgxpool.New(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), fmt.Sprintf("CREATE SCHEMA %q", name)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), fmt.Sprintf("DROP SCHEMA %q CASCADE", name)); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	t.Setenv("DATABASE_URL", u.String())
	return pool
}

// The shop publishes a cancellation twice; there is one refund, and its event is handled.
func TestCancelledTwiceIsRefundedOnce(t *testing.T) {
	pool := database(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() { // before the schema is dropped
		stop()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("run returned %v, want nil", err)
			}
		case <-time.After(limit):
			t.Errorf("run did not return within %v", limit)
		}
	})
	shop, err := postgres.New(postgres.Config{Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer shop.Close()
	pub, err := shop.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	cancelled := cancellation(t)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(limit)
	for published := false; ; {
		if !published { // until the service has made the tables
			published = pub.Publish("orders", cancelled, cancelled) == nil
		} else {
			var refunds, waiting int
			err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM refunds WHERE cents = 4990),
				(SELECT count(*) FROM headrace_broker_message)`).Scan(&refunds, &waiting)
			if err == nil && refunds == 1 && waiting == 0 {
				return
			}
			if refunds > 1 {
				t.Fatalf("there are %d refunds, want 1", refunds)
			}
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the refund and its event were not handled within %v", limit)
		}
	}
}

func cancellation(t *testing.T) *message.Message {
	t.Helper()
	ctx := event.ContextWithSource(t.Context(), "/shop")
	m, err := event.New(ctx, "order.cancelled", OrderCancelled{OrderID: "1001", Cents: 4990}, event.WithKey("1001"))
	if err != nil {
		t.Fatal(err)
	}
	return m
}
