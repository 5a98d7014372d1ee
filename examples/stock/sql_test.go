package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/testserver"
)

// postgresSchema makes a schema of the test's own and returns a URL whose connections use it, and a connection.
func postgresSchema(t *testing.T) (string, *pgx.Conn) {
	t.Helper()
	u, err := url.Parse(testserver.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	name := "stock_" + strings.ToLower(rand.Text()[:12])
	q := u.Query()
	q.Set("search_path", name)
	q.Set("application_name", name)
	u.RawQuery = q.Encode()
	conn, err := pgx.Connect(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := conn.Exec(context.Background(), fmt.Sprintf("DROP SCHEMA %q CASCADE", name)); err != nil {
			t.Error(err)
		}
		_ = conn.Close(context.Background()) // nothing is left to do with it
	})
	if _, err := conn.Exec(t.Context(), fmt.Sprintf("CREATE SCHEMA %q", name)); err != nil {
		t.Fatal(err)
	}
	return u.String(), conn
}

// The queue schema lost 8 of 10 messages when it was closed in the middle of a batch. With the settings of this example
// nothing is lost: the service is stopped in the middle of its messages, its connections are killed, a
// message fails, and one can never be handled.
func TestStockSQLLosesNothing(t *testing.T) {
	database, conn := postgresSchema(t)
	t.Setenv("DATABASE_URL", database)
	const n = 30
	publishSQL(t, database, n)

	var mu sync.Mutex
	var handled []string // the first time, in order
	var failed atomic.Bool
	for part := 1; ; part++ {
		ctx, stop := context.WithCancel(t.Context())
		var calls atomic.Int64
		ended := make(chan error, 1)
		all := make(chan struct{}, 1)
		go func() {
			ended <- run(ctx, func(_ context.Context, e OrderPlaced) error {
				switch calls.Add(1) {
				case 3:
					if part == 1 || part == 2 {
						stop() // this one is finished all the same
					}
				case 5:
					if _, err := conn.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
						WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid()`); err != nil {
						return err
					}
				}
				if e.OrderID == "7" {
					return classify.Permanent(errors.New("of no use"))
				}
				if e.OrderID == "2" && !failed.Swap(true) {
					return errors.New("not yet")
				}
				mu.Lock()
				defer mu.Unlock()
				if !slices.Contains(handled, e.OrderID) {
					handled = append(handled, e.OrderID)
				}
				if len(handled) == n-1 {
					select {
					case all <- struct{}{}:
					default:
					}
				}
				return nil
			})
		}()
		last := false
		select {
		case <-all:
			last = true
		case <-ctx.Done():
		case err := <-ended:
			t.Fatalf("run ended early: %v", err)
		case <-time.After(time.Minute):
			t.Fatalf("waited a minute; handled %v", handled)
		}
		stop()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("run returned %v, want nil", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("run did not return within a minute")
		}
		if last {
			break
		}
	}
	var want []string
	for i := 1; i <= n; i++ {
		if i != 7 {
			want = append(want, strconv.Itoa(i))
		}
	}
	if !slices.Equal(handled, want) {
		t.Errorf("handled %v, want %v", handled, want)
	}
	var dead int
	if err := conn.QueryRow(t.Context(), `SELECT count(DISTINCT uuid) FROM "watermill_orders.DLT"`).Scan(&dead); err != nil || dead != 1 {
		t.Errorf("%d dead letters, error %v; want 1", dead, err)
	}
}

func publishSQL(t *testing.T, database string, n int) {
	t.Helper()
	broker, closeBroker, err := stockSQL(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := broker.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	ctx := event.ContextWithSource(t.Context(), "/shop")
	for i := 1; i <= n; i++ {
		msg, err := event.New(ctx, "order.placed", OrderPlaced{OrderID: strconv.Itoa(i)}, event.WithKey("customer-1"))
		if err == nil {
			err = pub.Publish("orders", msg)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	closeBroker(&err)
	if err != nil {
		t.Fatal(err)
	}
}
