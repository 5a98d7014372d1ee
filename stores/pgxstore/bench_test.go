package pgxstore_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/inbox"
)

// BenchmarkOnce is one claim with one upsert, beside the same transaction written by hand in the usual
// four round trips. The ratio of the two is what the store costs, or saves. "parallel" is four at a time.
func BenchmarkOnce(b *testing.B) {
	p := newPlace(b, pgx.QueryExecModeCacheStatement)
	store := p.migrated(b)
	var serial atomic.Int64
	next := func() string { return strconv.FormatInt(serial.Add(1), 10) }

	viaStore := func(ctx context.Context) error {
		id := next()
		done, err := store.Once(ctx, inbox.Claim{Consumer: "billing", ID: id}, func(ctx context.Context, tx pgx.Tx) error {
			return p.add(ctx, tx, id)
		})
		if err == nil && !done {
			err = errors.New("duplicate")
		}
		return err
	}
	byHand := func(ctx context.Context) error {
		id := next()
		tx, err := p.pool.Begin(ctx)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, "INSERT INTO "+p.schema+".headrace_inbox (consumer, id) VALUES ($1, $2) ON CONFLICT DO NOTHING", "billing", id)
		if err == nil && tag.RowsAffected() != 1 {
			err = errors.New("duplicate")
		}
		if err == nil {
			err = p.add(ctx, tx, id)
		}
		if err != nil {
			return errors.Join(err, tx.Rollback(ctx))
		}
		return tx.Commit(ctx)
	}
	for _, subject := range []struct {
		name string
		run  func(context.Context) error
	}{{"store", viaStore}, {"by-hand", byHand}} {
		b.Run("serial/"+subject.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := subject.run(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("parallel/"+subject.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(2) // times the processors: 4 of the pool's 6 connections here
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := subject.run(b.Context()); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
