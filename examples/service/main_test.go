package main

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
)

const limit = 30 * time.Second

// start runs the service until the test ends, and fails the test if it does not end well.
func start(t *testing.T) (database string) {
	t.Helper()
	database = filepath.Join(t.TempDir(), "billing.db")
	t.Setenv("DATABASE", database)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
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
	return database
}

// awaitRefund waits until the one refund is in the database and its event has left the outbox.
func awaitRefund(t *testing.T, database string) {
	t.Helper()
	db, err := sql.Open("sqlite", database+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	deadline, tick := time.After(limit), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for {
		var refunds, waiting int
		err := db.QueryRowContext(t.Context(), `SELECT (SELECT count(*) FROM refunds WHERE cents = 4990), (SELECT count(*) FROM headrace_outbox)`).Scan(&refunds, &waiting)
		if err == nil && refunds == 1 && waiting == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %d refunds, %d rows in the outbox, last error %v", limit, refunds, waiting, err)
		}
	}
}

func TestServiceOnMemory(t *testing.T) {
	t.Setenv("BROKER_URL", "memory:")
	awaitRefund(t, start(t))
}

func TestServiceOnEmbeddedJetStream(t *testing.T) {
	url := "embedded:" + t.TempDir()
	broker, err := openBroker(url)
	if err != nil {
		t.Fatal(err)
	}
	publishCancelled(t, broker)
	if err := broker.Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BROKER_URL", url)
	awaitRefund(t, start(t))
}

func publishCancelled(t *testing.T, broker brokers.Broker) {
	t.Helper()
	pub, err := broker.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	ctx := event.ContextWithSource(t.Context(), "/shop")
	msg, err := event.New(ctx, "order.cancelled", OrderCancelled{OrderID: "1001", Cents: 4990}, event.WithKey("1001"))
	if err != nil {
		t.Fatal(err)
	}
	if err := pub.Publish("orders", msg); err != nil {
		t.Fatal(err)
	}
	if err := pub.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestUnknownBrokerIsNamed(t *testing.T) {
	_, err := openBroker("carrier-pigeon://roof")
	if err == nil || !strings.Contains(err.Error(), `"carrier-pigeon://roof"`) {
		t.Errorf("got %v, want an error that names the URL", err)
	}
}

// The README shows this very program.
func TestReadmeShowsThisMain(t *testing.T) {
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(source), "\nfunc main()")
	if want := "```go\nfunc main()" + program + "```"; !strings.Contains(string(readme), want) {
		t.Errorf("README.md does not contain the program as it is in main.go:\n%s", want)
	}
}
