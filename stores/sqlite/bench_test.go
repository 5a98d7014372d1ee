package sqlite_test

import (
	"context"
	"database/sql"
	"strconv"
	"testing"
	"time"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/sqlite"
)

// BenchmarkOnce is one claim with one UPDATE, beside the same transaction written by hand. The ratio of
// the two is what the store costs. The context can be cancelled, as a delivery's can: drivers then watch it.
func BenchmarkOnce(b *testing.B) {
	for _, s := range []sqlite.Synchronous{sqlite.SynchronousNormal, sqlite.SynchronousFull} {
		b.Run("sync="+string(s)+"/store", func(b *testing.B) {
			store := migrated(b, sqlite.WithSynchronous(s))
			b.ReportAllocs()
			ctx, n := b.Context(), 0
			for b.Loop() {
				n++
				done, err := store.Once(ctx, inbox.Claim{Consumer: "billing", ID: strconv.Itoa(n)}, func(ctx context.Context, tx *sql.Tx) error {
					return add(ctx, tx, "effects")
				})
				if !done || err != nil {
					b.Fatal(done, err)
				}
			}
		})
		b.Run("sync="+string(s)+"/by-hand", func(b *testing.B) {
			db := migrated(b, sqlite.WithSynchronous(s)).DB()
			b.ReportAllocs()
			ctx, n := b.Context(), 0
			for b.Loop() {
				n++
				tx, err := db.BeginTx(ctx, nil)
				if err != nil {
					b.Fatal(err)
				}
				result, err := tx.ExecContext(ctx, "INSERT INTO headrace_inbox (consumer, id, claimed_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
					"billing", strconv.Itoa(n), time.Now().UnixMicro())
				if err != nil {
					b.Fatal(err)
				}
				if rows, err := result.RowsAffected(); rows != 1 || err != nil {
					b.Fatal(rows, err)
				}
				if err := add(ctx, tx, "effects"); err != nil {
					b.Fatal(err)
				}
				if err := tx.Commit(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("duplicate", func(b *testing.B) {
		store := migrated(b)
		b.ReportAllocs()
		ctx, claim := b.Context(), inbox.Claim{Consumer: "billing", ID: "1"}
		nothing := func(context.Context, *sql.Tx) error { return nil }
		if _, err := store.Once(ctx, claim, nothing); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if done, err := store.Once(ctx, claim, nothing); done || err != nil {
				b.Fatal(done, err)
			}
		}
	})
}
