package sqlite_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/headracetest/inboxsuite"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/sqlite"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

func open(t testing.TB, opts ...sqlite.Option) *sqlstore.Store {
	t.Helper()
	// A name that a URI would take for something else.
	store, err := sqlite.Open(filepath.Join(t.TempDir(), "a b?c%41#.db"), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return store
}

func migrated(t testing.TB, opts ...sqlite.Option) *sqlstore.Store {
	t.Helper()
	store := open(t, opts...)
	if err := store.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.DB().Exec("CREATE TABLE counters (name TEXT PRIMARY KEY, n INTEGER NOT NULL CHECK (n > 0))"); err != nil {
		t.Fatal(err)
	}
	return store
}

func add(ctx context.Context, tx *sql.Tx, counter string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1", counter)
	return err
}

func harness(t *testing.T, opts ...sqlite.Option) inboxsuite.Harness[*sql.Tx] {
	store := migrated(t, opts...)
	return inboxsuite.Harness[*sql.Tx]{
		Store:      store,
		Unmigrated: func(t *testing.T) inbox.Store[*sql.Tx] { return open(t) },
		Add:        add,
		Count: func(ctx context.Context, counter string) (n int, err error) {
			err = store.DB().QueryRowContext(ctx, "SELECT coalesce(sum(n), 0) FROM counters WHERE name = ?", counter).Scan(&n)
			return n, err
		},
		Fail: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO counters VALUES ('bad', 0)")
			return err
		},
		End: func(_ context.Context, tx *sql.Tx, commit bool) error {
			if commit {
				return tx.Commit()
			}
			return tx.Rollback()
		},
		Idle: func() bool { return store.DB().Stats().InUse == 0 },
	}
}

func TestInbox(t *testing.T) {
	inboxsuite.Run(t, func(t *testing.T) inboxsuite.Harness[*sql.Tx] { return harness(t) })
}

func TestInboxWithTablePrefix(t *testing.T) {
	inboxsuite.Run(t, func(t *testing.T) inboxsuite.Harness[*sql.Tx] {
		return harness(t, sqlite.WithTablePrefix("billing_"), sqlite.WithSynchronous(sqlite.SynchronousNormal))
	})
}

func TestOpenSetsWhatItSays(t *testing.T) {
	for _, tc := range []struct {
		opts        []sqlite.Option
		synchronous string // 2 is FULL, 1 is NORMAL
		busy        string
	}{
		{nil, "2", "10000"},
		{[]sqlite.Option{sqlite.WithSynchronous(sqlite.SynchronousNormal), sqlite.WithBusyTimeout(time.Second)}, "1", "1000"},
	} {
		store := open(t, tc.opts...)
		for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": tc.synchronous, "busy_timeout": tc.busy, "foreign_keys": "1"} {
			var got string
			if err := store.DB().QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
				t.Errorf("pragma %s: %s, %v; want %s", pragma, got, err, want)
			}
		}
		if n := store.MaxConcurrency(); n != 1 {
			t.Errorf("MaxConcurrency %d, want 1", n)
		}
	}
}

func TestOpenRefusesBadInput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	for _, tc := range []struct {
		path string
		opt  sqlite.Option
		want string
	}{
		{"", nil, `path ""`},
		{":memory:", nil, `path ":memory:"`},
		{"file:x.db", nil, `path "file:x.db"`},
		{path, sqlite.WithSynchronous("OFF"), `synchronous "OFF"`},
		{path, sqlite.WithBusyTimeout(0), "busy timeout 0s"},
		{path, sqlite.WithTablePrefix("a-b"), `table prefix "a-b"`},
		{filepath.Join(path, "no", "folder"), nil, "open " + path},
	} {
		var opts []sqlite.Option
		if tc.opt != nil {
			opts = append(opts, tc.opt)
		}
		_, err := sqlite.Open(tc.path, opts...)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("Open(%q): %v; want an error with %q", tc.path, err, tc.want)
		}
	}
}

const busyForTest = 50 * time.Millisecond

// isTransient reports whether err is marked as worth a retry, also for those who judge unknown errors otherwise.
func isTransient(err error) bool {
	strict := new(classify.Classifier).Fallback(func(error) (classify.Result, bool) {
		return classify.Result{Verdict: classify.VerdictPoison}, true
	})
	return err != nil && strict.Classify(err).Verdict == classify.VerdictRetry
}
