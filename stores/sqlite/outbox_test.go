package sqlite_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/stores/sqlite"
)

func outboxSubject(tb testing.TB) outboxsuite.Subject[*sql.Tx] {
	store, err := sqlite.Open(filepath.Join(tb.TempDir(), "outbox.db"), sqlite.WithSynchronous(sqlite.SynchronousNormal))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := store.Close(); err != nil {
			tb.Error(err)
		}
	})
	if err := store.Migrate(context.Background()); err != nil {
		tb.Fatal(err)
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
}

func TestOutbox(t *testing.T) {
	outboxsuite.Run(t, func(t *testing.T) outboxsuite.Subject[*sql.Tx] { return outboxSubject(t) })
}

func BenchmarkOutbox(b *testing.B) {
	outboxsuite.Benchmark(b, func(b *testing.B) outboxsuite.Subject[*sql.Tx] { return outboxSubject(b) })
}
