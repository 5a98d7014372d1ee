// Package sqlitetest opens SQLite databases in memory, for tests of applications: a store as that of stores/sqlite, without its
// file.
package sqlitetest

import (
	"database/sql"
	"testing"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/headrace-go/headrace/stores/schema"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

// dsn has the settings of stores/sqlite that matter in memory.
const dsn = "file::memory:?_txlock=immediate&_foreign_keys=on"

// Open returns the store of a new database with Headrace's tables, after it has run the statements: those that make the
// application's. It is closed when the test ends. As with stores/sqlite there is one connection: what is asked of the store's DB waits
// while a handler's transaction is open.
func Open(t testing.TB, statements ...string) *sqlstore.Store {
	t.Helper()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatalf("open SQLite in memory: %v", err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close SQLite: %v", err)
		}
	})
	db.SetMaxOpenConns(1) // each connection has a database of its own
	db.SetConnMaxLifetime(0)
	db.SetConnMaxIdleTime(0)
	store, err := sqlstore.New(db, schema.SQLite)
	if err != nil {
		t.Fatalf("open SQLite in memory: %v", err)
	}
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatalf("migrate SQLite in memory: %v", err)
	}
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("run %q on SQLite in memory: %v", s, err)
		}
	}
	return store
}
