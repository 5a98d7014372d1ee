package inboxsuite

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace-go/headrace/inbox"
)

// inTx runs f in a transaction of its own, which commits if f returns nil.
func (b *bench[Tx]) inTx(f func(ctx context.Context, tx Tx) error) error {
	done, err := b.Store.Once(b.ctx, claim(fmt.Sprint("tx", serial.Add(1))), f)
	if err == nil && !done {
		b.Fatal("a new id was taken for a duplicate")
	}
	return err
}

var serial atomic.Int64

// advance tells what Advance says in a transaction of its own.
func (b *bench[Tx]) advanceTo(consumer, entity string, version int64) bool {
	b.Helper()
	var newer bool
	err := b.inTx(func(ctx context.Context, tx Tx) (err error) {
		newer, err = b.Store.Advance(ctx, tx, consumer, entity, version)
		return err
	})
	if err != nil {
		b.Fatalf("Advance(%q, %q, %d): %v", consumer, entity, version, err)
	}
	return newer
}

func (b *bench[Tx]) advance() {
	for i, tc := range []struct {
		consumer, entity string
		version          int64
		want             bool
	}{
		{"c", "e", 1, true},
		{"c", "e", 1, true}, // equal is not older
		{"c", "e", 3, true},
		{"c", "e", 2, false}, // stale
		{"c", "e", 3, true},
		{"c", "E", 2, true}, // another entity
		{"d", "e", 2, true}, // another consumer
		{"c", "zero", 0, true},
		{"c", "zero", 0, true},
		{"c", "zero", -1, false},
		{"c", "negative", -5, true},
		{"c", "negative", -4, true},
		{"c", "e", math.MaxInt64, true},
		{"c", "e", math.MaxInt64, true},
		{"c", "e", math.MaxInt64 - 1, false},
	} {
		if got := b.advanceTo(tc.consumer, tc.entity, tc.version); got != tc.want {
			b.Errorf("step %d: Advance(%q, %q, %d) = %t, want %t", i, tc.consumer, tc.entity, tc.version, got, tc.want)
		}
	}
	for _, entity := range []string{"", strings.Repeat("x", inbox.MaxNameBytes+1), "\xff"} {
		err := b.inTx(func(ctx context.Context, tx Tx) error {
			_, err := b.Store.Advance(ctx, tx, "c", entity, 1)
			return err
		})
		var refused *inbox.NameError
		if !errors.As(err, &refused) || refused.Field != "entity" {
			b.Errorf("Advance of entity %q: %v; want a NameError of field entity", entity, err)
		}
	}
}

func (b *bench[Tx]) advanceRollsBack() {
	err := b.inTx(func(ctx context.Context, tx Tx) error {
		newer, err := b.Store.Advance(ctx, tx, "c", "e", 5)
		if !newer {
			b.Error("Advance of a new entity: not newer")
		}
		return errors.Join(err, errHandler)
	})
	if !errors.Is(err, errHandler) {
		b.Fatalf("got %v, want the handler's error", err)
	}
	if !b.advanceTo("c", "e", 4) { // older than what was rolled back
		b.Error("the version of a failed attempt was kept: an older message that comes before its retry would be skipped as stale")
	}
}

// Versions of one entity arrive in any order in many transactions: none that is let through may be older
// than one before it, and the last one wins.
func (b *bench[Tx]) advanceConcurrently() {
	const versions = 24
	var wg sync.WaitGroup
	var mu sync.Mutex
	var applied []int64
	for i := range versions {
		version := int64(i*7%versions) + 1
		wg.Go(func() {
			for b.ctx.Err() == nil {
				_, err := b.Store.Once(b.ctx, claim(fmt.Sprint("v", version)), func(ctx context.Context, tx Tx) error {
					newer, err := b.Store.Advance(ctx, tx, "c", "e", version)
					if err == nil && newer {
						mu.Lock() // the entity's row is locked until the commit, so this is the order of commits
						applied = append(applied, version)
						mu.Unlock()
					}
					return err
				})
				if err == nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for i := 1; i < len(applied); i++ {
		if applied[i] <= applied[i-1] {
			b.Errorf("applied %v: %d after %d", applied, applied[i], applied[i-1])
		}
	}
	if len(applied) == 0 || applied[len(applied)-1] != versions {
		b.Errorf("applied %v, want %d to be the last", applied, versions)
	}
}

func (b *bench[Tx]) prune() {
	const claims = 5
	for i := range claims {
		b.once(fmt.Sprint("m", i))
	}
	for _, tc := range []struct {
		name        string
		before      time.Duration
		limit, want int
	}{
		{"younger claims stay", -time.Hour, 10, 0},
		{"at most limit", time.Hour, 2, 2},
		{"the rest", time.Hour, 10, 3},
		{"nothing left", time.Hour, 10, 0},
	} {
		n, err := b.Store.Prune(b.ctx, time.Now().Add(tc.before), tc.limit)
		if n != tc.want || err != nil {
			b.Errorf("%s: Prune(now%+v, %d) = %d, %v; want %d", tc.name, tc.before, tc.limit, n, err, tc.want)
		}
	}
	if _, err := b.Store.Prune(b.ctx, time.Now(), 0); err == nil {
		b.Error("Prune with limit 0: no error")
	}
	if !b.once("m0") {
		b.Error("a pruned claim is still there")
	}
}

// The schema was not migrated, and the error said "syntax error" or nothing at all.
func (b *bench[Tx]) missingTable() {
	if b.Unmigrated == nil {
		b.Skip("this store has no tables")
	}
	store := b.Unmigrated(b.T)
	_, err := store.Once(b.ctx, claim("m"), b.add("m"))
	check := store.Check(b.ctx)
	for name, err := range map[string]error{"Once": err, "Check": check} {
		if err == nil || !strings.Contains(err.Error(), "migration") || !strings.Contains(err.Error(), "Migrate") {
			b.Errorf("%s without tables: %v; want an error that names the table and Migrate", name, err)
		}
	}
	if err := store.Migrate(b.ctx); err != nil {
		b.Fatalf("Migrate: %v", err)
	}
	if err := store.Check(b.ctx); err != nil {
		b.Errorf("Check after Migrate: %v", err)
	}
	if done, err := store.Once(b.ctx, claim("m"), func(context.Context, Tx) error { return nil }); !done || err != nil {
		b.Errorf("Once after Migrate: %t, %v; want true", done, err)
	}
}

// Ten replicas started at once, and nine failed on a table that was there already.
func (b *bench[Tx]) migrateConcurrently() {
	store := b.Store
	if b.Unmigrated != nil {
		store = b.Unmigrated(b.T)
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := store.Migrate(b.ctx); err != nil {
				b.Errorf("Migrate: %v", err)
			}
		})
	}
	wg.Wait()
	if err := store.Check(b.ctx); err != nil {
		b.Errorf("Check: %v", err)
	}
}

// repository stands for an application's own type over a transaction.
type repository[Tx any] struct{ tx Tx }

func (b *bench[Tx]) mapped() {
	store := inbox.Map(b.Store, func(tx Tx) repository[Tx] { return repository[Tx]{tx} })
	for i, want := range []bool{true, false} {
		done, err := store.Once(b.ctx, claim("m"), func(ctx context.Context, r repository[Tx]) error {
			newer, err := store.Advance(ctx, r, "c", "e", 1)
			if !newer {
				b.Error("Advance through Map: not newer")
			}
			return errors.Join(err, b.Add(ctx, r.tx, "m"))
		})
		if done != want || err != nil {
			b.Errorf("Once %d through Map: %t, %v; want %t", i, done, err, want)
		}
	}
	b.wantCount("m", 1)
	if !inbox.Same(store, b.Store) {
		b.Error("a mapped store is not the same database as its own")
	}
}
