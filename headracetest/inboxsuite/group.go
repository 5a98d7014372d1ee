package inboxsuite

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace-go/headrace/inbox"
)

// groups returns the store as one that claims many messages at once.
func (b *bench[Tx]) groups() inbox.GroupStore[Tx] {
	b.Helper()
	g, ok := b.Store.(inbox.GroupStore[Tx])
	if !ok {
		b.Skip("this store has no group transactions")
	}
	return g
}

// claims returns the sorted claims of ids.
func claims(ids ...string) []inbox.Claim {
	slices.SortFunc(ids, strings.Compare)
	var cs []inbox.Claim
	for _, id := range ids {
		cs = append(cs, claim(id))
	}
	return cs
}

// group adds one to the counter of each id that is new, in one transaction, and returns those.
func (b *bench[Tx]) group(ctx context.Context, then func(ctx context.Context, tx Tx) error, ids ...string) ([]string, error) {
	var fresh []string
	cs := claims(ids...)
	err := b.groups().OnceGroup(ctx, cs, func(ctx context.Context, tx Tx, isNew []bool) error {
		fresh = nil
		if len(isNew) != len(cs) {
			return fmt.Errorf("isNew has %d of %d", len(isNew), len(cs))
		}
		for i, c := range cs {
			if !isNew[i] {
				continue
			}
			fresh = append(fresh, c.ID)
			if err := b.Add(ctx, tx, c.ID); err != nil {
				return err
			}
		}
		if then != nil {
			return then(ctx, tx)
		}
		return nil
	})
	return fresh, err
}

// wantGroup runs a group that must commit, and checks which were new.
func (b *bench[Tx]) wantGroup(want []string, ids ...string) {
	b.Helper()
	fresh, err := b.group(b.ctx, nil, ids...)
	if err != nil || !slices.Equal(fresh, want) {
		b.Errorf("OnceGroup of %q: new %q, %v; want %q", ids, fresh, err, want)
	}
	for _, id := range ids {
		b.wantCount(id, 1)
	}
}

func (b *bench[Tx]) groupTellsWhichAreNew() {
	b.once("b")
	b.wantGroup([]string{"a", "c"}, "a", "b", "c")
	b.wantGroup(nil, "a", "b", "c")
	b.wantGroup([]string{"d"}, "a", "b", "c", "d")
	b.wantGroup([]string{"e", "f"}, "e", "f")
	if b.once("e") {
		b.Error("a claim of a group is not there for Once")
	}
}

// Ids are in the database's order of bytes, and the answer was matched by another order.
func (b *bench[Tx]) groupBytewise() {
	ids := []string{"a", "A", "a ", " a", "ä", "a\u0308", "Ä", "ß", "ss", "a'\"`\\;--", "日本", "%", "_", strings.Repeat("x", inbox.MaxNameBytes)}
	for i := range inbox.MaxGroupMax - len(ids) {
		ids = append(ids, fmt.Sprint("m", i))
	}
	slices.Sort(ids)
	b.wantGroup(slices.Clone(ids), ids...)
	b.wantGroup(nil, ids...)
}

// A failed message's claim outlived the rollback and was committed with its group: its retry had no effect.
func (b *bench[Tx]) groupFailureLeavesNoClaim() {
	for name, fail := range map[string]func(ctx context.Context, tx Tx) error{
		"error":  func(context.Context, Tx) error { return errHandler },
		"panic":  func(context.Context, Tx) error { panic("boom") },
		"goexit": func(context.Context, Tx) error { runtime.Goexit(); return nil },
		"statement": func(ctx context.Context, tx Tx) error {
			if b.Fail == nil {
				return errHandler
			}
			return b.Fail(ctx, tx)
		},
		"swallowed statement": func(ctx context.Context, tx Tx) error {
			if !b.FailureAborts {
				return errHandler
			}
			_ = b.Fail(ctx, tx)
			return nil
		},
		"its own end": func(ctx context.Context, tx Tx) error {
			if b.End == nil {
				return errHandler
			}
			return b.End(ctx, tx, false)
		},
		"cancelled": func(context.Context, Tx) error { return context.Canceled },
	} {
		ids := []string{name + "1", name + "2"}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer func() { _ = recover() }()
			if _, err := b.group(b.ctx, fail, ids...); err == nil {
				b.Errorf("%s: OnceGroup returned no error", name)
			}
		}()
		<-ended
		for _, id := range ids {
			b.wantCount(id, 0)
			if !b.once(id) {
				b.Errorf("%s: the claim of %s outlived the rollback: the message is lost", name, id)
			}
		}
	}
	ctx, cancel := context.WithCancel(b.ctx)
	_, err := b.group(ctx, func(context.Context, Tx) error { cancel(); return nil }, "quiet1", "quiet2")
	if !errors.Is(err, context.Canceled) {
		b.Errorf("OnceGroup whose context ended while its function ran: %v; want context.Canceled", err)
	}
	b.wantCount("quiet1", 0)
}

func (b *bench[Tx]) groupCrash() {
	if b.Kill == nil {
		b.Skip("the connection of this store cannot be ended from outside")
	}
	if _, err := b.group(b.ctx, b.Kill, "a", "b"); err == nil {
		b.Error("OnceGroup over a connection that was killed after the effects: no error")
	}
	b.wantGroupAfter("a", "b")
}

// wantGroupAfter checks that a group left nothing.
func (b *bench[Tx]) wantGroupAfter(ids ...string) {
	b.Helper()
	for _, id := range ids {
		b.wantCount(id, 0)
	}
	b.wantGroup(ids, ids...)
}

// A copy of one of the group's messages is being handled elsewhere: the group waits for its outcome.
func (b *bench[Tx]) groupWaitsForACopy() {
	for _, end := range []error{nil, errHandler} {
		ids := []string{fmt.Sprint("a", end), fmt.Sprint("m", end), fmt.Sprint("z", end)}
		release, first := b.hold(ids[1])
		type answer struct {
			fresh []string
			err   error
		}
		out := make(chan answer, 1)
		go func() {
			fresh, err := b.group(b.ctx, nil, ids...)
			out <- answer{fresh, err}
		}()
		for b.Waiting != nil && b.Store.MaxConcurrency() > 1 {
			if waiting, err := b.Waiting(b.ctx); waiting || err != nil {
				break
			}
			tick(b.ctx)
		}
		release <- end
		<-first
		want := ids
		if end == nil {
			want = []string{ids[0], ids[2]}
		}
		if got := <-out; got.err != nil || !slices.Equal(got.fresh, want) {
			b.Errorf("a group beside a copy that ended with %v: new %q, %v; want %q", end, got.fresh, got.err, want)
		}
		for _, id := range ids {
			b.wantCount(id, 1)
		}
	}
}

// Groups claimed overlapping sets in different orders and waited for each other in a circle.
func (b *bench[Tx]) groupsOverlap() {
	const rounds, each = 8, 12
	var wg sync.WaitGroup
	var claimed atomic.Int64
	for r := range rounds {
		wg.Go(func() {
			var ids []string
			for i := range each {
				ids = append(ids, fmt.Sprint("m", (r*5+i)%30))
			}
			for b.ctx.Err() == nil {
				n := 0
				err := b.groups().OnceGroup(b.ctx, claims(ids...), func(_ context.Context, _ Tx, isNew []bool) error {
					n = 0
					for _, is := range isNew {
						if is {
							n++
						}
					}
					return nil
				})
				if err == nil {
					claimed.Add(int64(n))
					return
				}
				if b.FailureAborts { // Postgres; others may lose a race and are tried again
					b.Errorf("group %d: %v", r, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if claimed.Load() != 30 {
		b.Errorf("%d claims of 30 ids", claimed.Load())
	}
}

// Random failures under Grouped: what is reported done has one effect, and nothing else has one.
func (b *bench[Tx]) grouped() {
	var splits atomic.Int64
	store := inbox.Grouped(b.groups(), inbox.GroupConfig{Max: 8, OnSplit: func(context.Context, int, error) { splits.Add(1) }})
	if !inbox.Same(store, b.Store) || inbox.ObservedOf(store) == nil {
		b.Error("a grouped store is not the same database as its own")
	}
	const messages = 60
	var wg sync.WaitGroup
	for i := range messages {
		for c := range 2 {
			wg.Go(func() {
				id := fmt.Sprint("m", i)
				for attempt := 0; b.ctx.Err() == nil; attempt++ {
					_, err := store.Once(b.ctx, claim(id), func(ctx context.Context, tx Tx) error {
						if err := b.Add(ctx, tx, id); err != nil {
							return err
						}
						if attempt == 0 && (i+c)%17 == 0 {
							return errHandler
						}
						return nil
					})
					if err == nil {
						return
					}
				}
			})
		}
	}
	wg.Wait()
	for i := range messages {
		b.wantCount(fmt.Sprint("m", i), 1)
	}
}

func (b *bench[Tx]) stats() {
	observed := inbox.ObservedOf(b.Store)
	if observed == nil {
		b.Skip("this store tells nothing of itself")
	}
	if s, err := observed.Stats(b.ctx); err != nil || s.Oldest != 0 || s.Duplicates != 0 {
		b.Errorf("Stats of an empty inbox: %+v, %v", s, err)
	}
	b.once("a")
	b.once("b")
	b.once("a")
	b.wantGroup([]string{"c"}, "a", "b", "c")
	tick(b.ctx)
	s, err := observed.Stats(b.ctx)
	if err != nil || s.Oldest <= 0 || s.Oldest > limit || s.Duplicates != 3 {
		b.Errorf("Stats: %+v, %v; want an age below %v and 3 duplicates", s, err, limit)
	}
	b.wantClaims(observed, 3)
	if b.Unmigrated != nil {
		if _, err := inbox.ObservedOf(b.Unmigrated(b.T)).Stats(b.ctx); err == nil || !strings.Contains(err.Error(), "Migrate") {
			b.Errorf("Stats without tables: %v; want an error that names Migrate", err)
		}
	}
}

// wantClaims looks until the store tells of so many claims: what sessions before have done is counted a moment later, and what was
// deleted is.
func (b *bench[Tx]) wantClaims(observed inbox.Observed, want int64) {
	b.Helper()
	var got int64
	for range 1_000 {
		if b.Analyze != nil {
			if err := b.Analyze(b.ctx); err != nil {
				b.Fatalf("analyze the inbox, of which Stats told %d claims: %v", got, err)
			}
		}
		s, err := observed.Stats(b.ctx)
		if err != nil {
			b.Fatal(err)
		}
		if got = s.Claims; got == want || b.Analyze == nil {
			break
		}
		tick(b.ctx)
	}
	if got != want {
		b.Errorf("Stats: %d claims; want %d", got, want)
	}
}

// A pass over many claims goes on where it was, and an interrupted or a new one misses nothing.
func (b *bench[Tx]) prunePasses() {
	var ids []string
	for i := range 60 {
		ids = append(ids, fmt.Sprintf("m%02d", i))
	}
	b.wantGroup(slices.Clone(ids), ids...) // one time for all
	b.once("later")
	before := time.Now().Add(time.Hour)
	total := 0
	for range 3 {
		n, err := b.Store.Prune(b.ctx, before, 10)
		if n != 10 || err != nil {
			b.Fatalf("Prune: %d, %v; want 10", n, err)
		}
		total += n
	}
	for {
		n, err := b.Store.Prune(b.ctx, before.Add(time.Second), 7) // another pass
		if err != nil {
			b.Fatal(err)
		}
		if total += n; n < 7 {
			break
		}
	}
	if total != 61 {
		b.Errorf("pruned %d claims of 61", total)
	}
	if n, err := b.Store.Prune(b.ctx, before, 10); n != 0 || err != nil {
		b.Errorf("Prune of an empty inbox: %d, %v", n, err)
	}
}
