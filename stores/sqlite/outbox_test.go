package sqlite_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/stores/sqlite"
)

func TestOutbox(t *testing.T) {
	outboxsuite.Run(t, func(t *testing.T) outboxsuite.Subject[*sql.Tx] {
		store, err := sqlite.Open(filepath.Join(t.TempDir(), "outbox.db"), sqlite.WithSynchronous(sqlite.SynchronousNormal))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
		if err := store.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		return outboxsuite.Subject[*sql.Tx]{
			Source: store.Outbox(), Writer: store, OneWriter: true,
			Begin: func(ctx context.Context) (*sql.Tx, func() error, func() error, error) {
				tx, err := store.DB().BeginTx(ctx, nil)
				if err != nil {
					return nil, nil, nil, err
				}
				return tx, tx.Commit, tx.Rollback, nil
			},
		}
	})
}
