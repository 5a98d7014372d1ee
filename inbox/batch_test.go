package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/stores/testonly"
)

// batch is a batcher of ids whose handler notes its calls.
type batch struct {
	*inbox.Batcher[*testonly.Tx, string]
	store *watched
	calls [][]string
}

// newBatch returns a batcher whose handler counts each id, and then does what act says.
func newBatch(t *testing.T, config inbox.GroupConfig, act func(ctx context.Context, ids []string) error) *batch {
	t.Helper()
	b := &batch{store: &watched{Store: testonly.New()}}
	batcher, err := inbox.NewBatcher[*testonly.Tx](b.store, config, func(ctx context.Context, tx *testonly.Tx, ids []string) error {
		b.calls = append(b.calls, slices.Clone(ids))
		for _, id := range ids {
			_ = count(tx, id)
		}
		return act(ctx, ids)
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Batcher = batcher
	return b
}

// run runs the ids at the same moment, behind one that holds the only place, and gives what came of each.
func (b *batch) run(t *testing.T, hold chan struct{}, ids []string, ctxs map[string]context.Context) map[string]outcome {
	t.Helper()
	var mu sync.Mutex
	got := map[string]outcome{}
	one := func(id string) {
		msg := delivered(id)
		f := flight.Ensure(msg)
		f.Consumer, f.ID = "c", id
		ctx := context.Context(f)
		if c := ctxs[id]; c != nil {
			f.Context = c
		}
		var err error
		func() {
			defer func() {
				if v := recover(); v != nil {
					err = fmt.Errorf("panic: %v", v)
				}
			}()
			err = b.Run(ctx, msg, func() (string, error) { return id, nil })
		}()
		mu.Lock()
		defer mu.Unlock()
		got[id] = outcome{f.Receipt() == flight.Committed, err}
	}
	go one("first")
	synctest.Wait()
	for _, id := range ids {
		go one(id)
		synctest.Wait()
	}
	close(hold)
	time.Sleep(time.Minute)
	mu.Lock()
	defer mu.Unlock()
	return got
}

func TestBatchIsHandledAtOnceInOrderOfArrivalWithoutDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		b := newBatch(t, inbox.GroupConfig{}, func(_ context.Context, ids []string) error {
			if ids[0] == "first" {
				<-hold
			}
			return nil
		})
		if done, err := b.store.Store.Once(t.Context(), inbox.Claim{Consumer: "c", ID: "known"}, func(context.Context, *testonly.Tx) error { return nil }); !done || err != nil {
			t.Fatal(done, err)
		}
		got := b.run(t, hold, []string{"d", "known", "b", "a"}, nil)
		if want := [][]string{{"first"}, {"d", "b", "a"}}; !slices.EqualFunc(b.calls, want, slices.Equal) {
			t.Errorf("the handler got %q, want %q", b.calls, want)
		}
		for _, id := range []string{"d", "b", "a"} {
			if o := got[id]; !o.done || o.err != nil || b.store.Get(id) != "x" {
				t.Errorf("%s: committed %t, %v, effect %q; want one effect", id, o.done, o.err, b.store.Get(id))
			}
		}
		if o := got["known"]; o.done || o.err != nil {
			t.Errorf("the duplicate: committed %t, %v; want the receipt of a duplicate", o.done, o.err)
		}
		if b.MaxConcurrency() != 100 || !inbox.Same(b, b.store) {
			t.Errorf("MaxConcurrency %d, same database %t; want 100 and true", b.MaxConcurrency(), inbox.Same(b, b.store))
		}
	})
}

// One bad event of a batch had all of it retried and dead-lettered.
func TestI7BatchThatFailsRunsItsMembersAlone(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error":  func() error { return errors.New("bad event") },
		"panic":  func() error { panic("bad event") },
		"goexit": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hold := make(chan struct{})
				b := newBatch(t, inbox.GroupConfig{}, func(_ context.Context, ids []string) error {
					if ids[0] == "first" {
						<-hold
					}
					if slices.Contains(ids, "bad") {
						return fail()
					}
					return nil
				})
				got := b.run(t, hold, []string{"a", "bad", "c"}, nil)
				for id, o := range got {
					want := "x"
					if id == "bad" {
						want = ""
					}
					if o.done != (want == "x") || b.store.Get(id) != want {
						t.Errorf("%s: committed %t, %v, effect %q; want effect %q", id, o.done, o.err, b.store.Get(id), want)
					}
				}
				if o := got["bad"]; name != "goexit" && o.err == nil {
					t.Error("the bad event: no error")
				}
			})
		})
	}
}

func TestBatchEndsWhenTheContextOfOneDoes(t *testing.T) {
	for _, leaver := range []string{"a", "b"} { // the one whose goroutine runs it, and another
		synctest.Test(t, func(t *testing.T) {
			hold := make(chan struct{})
			ended, cancel := context.WithCancel(t.Context())
			b := newBatch(t, inbox.GroupConfig{}, func(ctx context.Context, ids []string) error {
				switch {
				case ids[0] == "first":
					<-hold
				case len(ids) > 1:
					if flight.From(ctx) != nil {
						t.Error("the batch's context belongs to one message")
					}
					cancel()
					<-ctx.Done()
				}
				return nil
			})
			got := b.run(t, hold, []string{"a", "b", "c"}, map[string]context.Context{leaver: ended})
			for id, o := range got {
				if gone := id == leaver; o.done == gone || gone != errors.Is(o.err, context.Canceled) || (b.store.Get(id) == "x") == gone {
					t.Errorf("%s, where %s left: committed %t, %v, effect %q", id, leaver, o.done, o.err, b.store.Get(id))
				}
			}
		})
	}
}

func ExampleNewBatcher() {
	store := testonly.New()
	// The effect is one statement for the whole set.
	totals, err := inbox.NewBatcher(store, inbox.GroupConfig{Max: 100}, func(_ context.Context, tx *testonly.Tx, amounts []int) error {
		total := 0
		for _, a := range amounts {
			total += a
		}
		tx.Set("total", tx.Get("total")+fmt.Sprintf("+%d", total))
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	msg := delivered("order-1")
	f := flight.Ensure(msg) // the runtime's, or inbox.Handler's
	f.Consumer = "billing"
	for range 2 { // delivered twice
		fmt.Println(totals.Run(f, msg, func() (int, error) { return 5, nil }), store.Get("total"))
	}
	// Output:
	// <nil> +5
	// <nil> +5
}
