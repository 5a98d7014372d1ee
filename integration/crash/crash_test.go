package crash_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/headrace-go/headrace/integration/crash"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestMain(m *testing.M) {
	crash.Child()
	m.Run()
}

// R1, I1, O5: producers, relays, consumers and the server die at every moment that matters, freeze, lose their
// connections and cannot get new ones, while events go through. Each event takes effect once, its key's in order.
//
// It is the short form of make crash.
func TestEverythingIsKilled(t *testing.T) {
	testserver.Postgres(t) // no server for tests: none is to be started here either
	dir, err := os.MkdirTemp("", "headrace-crash-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the server's user must be able to see it
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	report, err := crash.Run(ctx, crash.Config{
		Servers: "../servers", Dir: dir, Seed: uint64(time.Now().UnixNano()), Events: 500, Keys: 40, Producers: 1, Relays: 2, Consumers: 3,
		Rounds: 1, Lease: time.Second, CalmMin: 10 * time.Millisecond, CalmMax: 50 * time.Millisecond, Backlog: 200, DiskMiB: 128,
		Patience: time.Minute, Log: t.Output(),
	})
	if err != nil {
		t.Fatalf("%v; logs and records: %s", err, dir)
	}
	t.Log(report)
	if len(report.Broken) > 0 || report.Events < 500 {
		t.Fatalf("logs and records: %s", dir)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}
