package inbox_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headrace-go/headrace/inbox"
)

// noStore has transactions that do nothing.
type noStore struct{ inbox.Store[struct{}] }

func (noStore) Once(ctx context.Context, _ inbox.Claim, fn func(context.Context, struct{}) error) (bool, error) {
	return true, fn(ctx, struct{}{})
}

func (noStore) OnceGroup(ctx context.Context, claims []inbox.Claim, fn func(context.Context, struct{}, []bool) error) error {
	isNew := make([]bool, len(claims))
	for i := range isNew {
		isNew[i] = true
	}
	return fn(ctx, struct{}{}, isNew)
}

// BenchmarkGrouped is what a group costs a message besides the database.
func BenchmarkGrouped(b *testing.B) {
	store := inbox.Grouped[struct{}](noStore{}, inbox.GroupConfig{Parallel: 4})
	var next atomic.Int64
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	b.ResetTimer()
	for range store.MaxConcurrency() {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				claim := inbox.Claim{Consumer: "c", ID: strconv.FormatInt(i, 10)}
				done, err := store.Once(ctx, claim, func(context.Context, struct{}) error { return nil })
				if !done || err != nil {
					b.Error(done, err)
				}
			}
		})
	}
	wg.Wait()
}
