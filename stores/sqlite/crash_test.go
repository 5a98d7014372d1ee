//go:build unix

package sqlite_test

import (
	"context"
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/sqlite"
)

// crashFile tells the test binary to be the process that dies; see TestMain.
const crashFile = "HEADRACE_TEST_CRASH_FILE"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashFile); path != "" {
		dieInHandler(path)
		os.Exit(3) // it should have been killed
	}
	os.Exit(m.Run())
}

var crashed = inbox.Claim{Consumer: "c", ID: "m"}

// dieInHandler kills its own process after the effect and before the commit.
func dieInHandler(path string) {
	store, err := sqlite.Open(path)
	if err != nil {
		panic(err)
	}
	_, err = store.Once(context.Background(), crashed, func(ctx context.Context, tx *sql.Tx) error {
		if err := add(ctx, tx, "m"); err != nil {
			return err
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return err
		}
		select {}
	})
	panic(err)
}

// The process died after the effect and before the mark, and the effect was doubled.
func TestI4KilledBetweenEffectAndCommit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	store, err := sqlite.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.DB().Exec("CREATE TABLE counters (name TEXT PRIMARY KEY, n INTEGER NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		child.Env = append(os.Environ(), crashFile+"="+path)
		out, err := child.CombinedOutput()
		if err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the child ended with %v, want killed; output: %s", err, out)
		}
	}
	done, err := store.Once(t.Context(), crashed, func(ctx context.Context, tx *sql.Tx) error { return add(ctx, tx, "m") })
	if !done || err != nil {
		t.Errorf("Once after two crashes: %t, %v; want true", done, err)
	}
	var n int
	if err := store.DB().QueryRow("SELECT n FROM counters").Scan(&n); err != nil || n != 1 {
		t.Errorf("counter %d, %v; want 1", n, err)
	}
}

// Another program held the file's lock longer than the busy timeout, and the message was dead-lettered.
func TestTwoProcessesOnOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	stores := [2]interface {
		inbox.Store[*sql.Tx]
		Close() error
	}{}
	for i := range stores {
		store, err := sqlite.Open(path, sqlite.WithBusyTimeout(busyForTest))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		}()
		if err := store.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		stores[i] = store
	}
	nothing := func(context.Context, *sql.Tx) error { return nil }
	done, err := stores[0].Once(t.Context(), crashed, func(ctx context.Context, _ *sql.Tx) error {
		_, err := stores[1].Once(ctx, inbox.Claim{Consumer: "c", ID: "other"}, nothing)
		if !isTransient(err) {
			t.Errorf("Once while another process holds the lock: %v; want a transient error", err)
		}
		return nil
	})
	if !done || err != nil {
		t.Errorf("Once of the one that held the lock: %t, %v; want true", done, err)
	}
	if done, err := stores[1].Once(t.Context(), crashed, nothing); done || err != nil {
		t.Errorf("Once of the other for the same claim: %t, %v; want a duplicate", done, err)
	}
}
