package sqlite_test

import (
	"testing"

	"github.com/headrace-go/headrace/headracetest/ledgersuite"
	"github.com/headrace-go/headrace/stores/sqlite"
)

func TestLedger(t *testing.T) {
	store, err := sqlite.Open(t.TempDir()+"/ledger.db", sqlite.WithSynchronous(sqlite.SynchronousNormal))
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
	ledgersuite.Run(t, store.Ledger())
}
