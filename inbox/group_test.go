package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/stores/testonly"
)

// watched is a store that notes its transactions and can be held up.
type watched struct {
	*testonly.Store
	mu      sync.Mutex
	groups  [][]string // the ids of each OnceGroup
	singles []string   // the ids of each Once

	claim  func(ctx context.Context, ids []string) error // before the claim
	commit func(ids []string) error                      // before the commit
}

func (w *watched) Once(ctx context.Context, c inbox.Claim, fn func(context.Context, *testonly.Tx) error) (bool, error) {
	w.mu.Lock()
	w.singles = append(w.singles, c.ID)
	w.mu.Unlock()
	return w.Store.Once(ctx, c, fn)
}

func (w *watched) OnceGroup(ctx context.Context, claims []inbox.Claim, fn func(context.Context, *testonly.Tx, []bool) error) error {
	var ids []string
	for _, c := range claims {
		ids = append(ids, c.ID)
	}
	w.mu.Lock()
	w.groups = append(w.groups, ids)
	w.mu.Unlock()
	if w.claim != nil {
		if err := w.claim(ctx, ids); err != nil {
			return err
		}
	}
	return w.Store.OnceGroup(ctx, claims, func(ctx context.Context, tx *testonly.Tx, isNew []bool) error {
		err := fn(ctx, tx, isNew)
		if err == nil && w.commit != nil {
			err = w.commit(ids)
		}
		return err
	})
}

func claim(id string) inbox.Claim { return inbox.Claim{Consumer: "c", ID: id} }

func count(tx *testonly.Tx, id string) error {
	tx.Set(id, tx.Get(id)+"x")
	return nil
}

// outcome is what a Once in another goroutine returned.
type outcome struct {
	done bool
	err  error
}

// together runs once for each id at the same moment, while a first message holds the only place, so that they
// are one group. It must be called in a synctest bubble.
func together(t *testing.T, store inbox.Store[*testonly.Tx], ids []string, fn func(id string) (context.Context, func(context.Context, *testonly.Tx) error)) map[string]outcome {
	t.Helper()
	hold := make(chan struct{})
	go func() {
		_, err := store.Once(t.Context(), claim("first"), func(context.Context, *testonly.Tx) error { <-hold; return nil })
		if err != nil {
			t.Errorf("the message before the group: %v", err)
		}
	}()
	synctest.Wait()
	var mu sync.Mutex
	got := map[string]outcome{}
	for _, id := range ids {
		ctx, f := fn(id)
		go func() {
			done, err := store.Once(ctx, claim(id), f)
			mu.Lock()
			defer mu.Unlock()
			got[id] = outcome{done, err}
		}()
		synctest.Wait()
	}
	close(hold)
	time.Sleep(time.Minute) // until all have ended
	mu.Lock()
	defer mu.Unlock()
	return got
}

func effect(t *testing.T) func(id string) (context.Context, func(context.Context, *testonly.Tx) error) {
	return func(id string) (context.Context, func(context.Context, *testonly.Tx) error) {
		return t.Context(), func(_ context.Context, tx *testonly.Tx) error { return count(tx, id) }
	}
}

func TestGroupIsWhatWaitsClaimedSortedRunInOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{Store: testonly.New()}
		store := inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{Max: 3})
		var ran []string
		got := together(t, store, []string{"d", "b", "c", "a"}, func(id string) (context.Context, func(context.Context, *testonly.Tx) error) {
			return t.Context(), func(_ context.Context, tx *testonly.Tx) error {
				ran = append(ran, id) // one after the other: the race detector would see it
				return count(tx, id)
			}
		})
		if want := [][]string{{"b", "c", "d"}}; !slices.EqualFunc(w.groups, want, slices.Equal) {
			t.Errorf("groups %q, want %q", w.groups, want)
		}
		if want := []string{"first", "a"}; !slices.Equal(w.singles, want) {
			t.Errorf("alone %q, want %q", w.singles, want)
		}
		if want := []string{"d", "b", "c", "a"}; !slices.Equal(ran, want) {
			t.Errorf("handlers ran in the order %q, want %q", ran, want)
		}
		for id, o := range got {
			if !o.done || o.err != nil || w.Get(id) != "x" {
				t.Errorf("%s: %t, %v, effect %q; want true and one effect", id, o.done, o.err, w.Get(id))
			}
		}
	})
}

// A failed message's claim survived the rollback to a savepoint and was committed with its group; its retry
// claimed nothing and had no effect: lost.
func TestI7FailureRollsBackTheGroupAndEachRunsAlone(t *testing.T) {
	errBad := errors.New("bad")
	for name, fail := range map[string]func() error{
		"error":  func() error { return errBad },
		"panic":  func() error { panic(errBad) },
		"goexit": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &watched{Store: testonly.New()}
				var reason error
				store := inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{OnSplit: func(_ context.Context, n int, err error) {
					if reason = err; n != 3 {
						t.Errorf("OnSplit of %d messages, want 3", n)
					}
				}})
				var panicked any
				var runsOfBad atomic.Int32
				got := together(t, inbox.Store[*testonly.Tx](recovering{store, &panicked}), []string{"a", "bad", "c"}, func(id string) (context.Context, func(context.Context, *testonly.Tx) error) {
					return t.Context(), func(_ context.Context, tx *testonly.Tx) error {
						_ = count(tx, id)
						if id == "bad" {
							runsOfBad.Add(1)
							return fail()
						}
						return nil
					}
				})
				for _, id := range []string{"a", "c"} {
					if o := got[id]; !o.done || o.err != nil || w.Get(id) != "x" {
						t.Errorf("neighbour %s: %t, %v, effect %q; want true and one effect", id, o.done, o.err, w.Get(id))
					}
				}
				if reason == nil || w.Get("bad") != "" {
					t.Errorf("reason %v, effect of the failed message %q; want a reason and no effect", reason, w.Get("bad"))
				}
				switch name {
				case "error":
					if o := got["bad"]; o.done || !errors.Is(o.err, errBad) {
						t.Errorf("the failed message: %t, %v; want its own error", o.done, o.err)
					}
				case "panic":
					if panicked != errBad || runsOfBad.Load() != 2 {
						t.Errorf("panic %v after %d runs; want the handler's own, out of its second run, alone", panicked, runsOfBad.Load())
					}
				case "goexit":
					if _, returned := got["bad"]; returned || runsOfBad.Load() != 2 {
						t.Errorf("Once returned: %t after %d runs; want Goexit to go its way, out of its second run, alone", returned, runsOfBad.Load())
					}
				}
				// The retry has its effect.
				if done, err := store.Once(t.Context(), claim("bad"), func(_ context.Context, tx *testonly.Tx) error { return count(tx, "bad") }); !done || err != nil || w.Get("bad") != "x" {
					t.Errorf("the retry: %t, %v, effect %q; want true and one effect: the claim survived", done, err, w.Get("bad"))
				}
			})
		})
	}
}

// A store's panic in a group, or that of the function of a mapped one, was in no message's goroutine and ended the process.
func TestPanicOfTheStoreInAGroupHasEachRunAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{Store: testonly.New(), claim: func(context.Context, []string) error { panic("no transaction") }}
		var reason error
		store := inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{OnSplit: func(_ context.Context, _ int, err error) { reason = err }})
		got := together(t, store, []string{"a", "b"}, effect(t))
		for id, o := range got {
			if !o.done || o.err != nil || w.Get(id) != "x" {
				t.Errorf("%s: %t, %v, effect %q; want true and one effect", id, o.done, o.err, w.Get(id))
			}
		}
		if reason == nil || len(w.groups) != 1 || len(got) != 2 {
			t.Errorf("reason %v, groups %q, %d messages; want a reason, one group and both", reason, w.groups, len(got))
		}
	})
}

// recovering keeps a panic from the test.
type recovering struct {
	inbox.Store[*testonly.Tx]
	value *any
}

func (r recovering) Once(ctx context.Context, c inbox.Claim, fn func(context.Context, *testonly.Tx) error) (done bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			*r.value, err = v, fmt.Errorf("panic: %v", v)
		}
	}()
	return r.Store.Once(ctx, c, fn)
}

// A panic of OnSplit ended the process, and Goexit left all members waiting for ever.
func TestGroupOutlivesItsOnSplit(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("no metrics") }, "goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &watched{Store: testonly.New(), commit: func([]string) error { return inbox.ErrCommitRolledBack }}
				store := inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{OnSplit: func(context.Context, int, error) { end() }})
				for id, o := range together(t, store, []string{"a", "b"}, effect(t)) {
					if !o.done || o.err != nil || w.Get(id) != "x" {
						t.Errorf("%s: %t, %v, effect %q; want one effect, alone", id, o.done, o.err, w.Get(id))
					}
				}
				if got := together(t, store, []string{"c", "d"}, effect(t)); len(got) != 2 {
					t.Errorf("%d of 2 messages have ended after that", len(got))
				}
			})
		})
	}
}

// A COMMIT that was answered with ROLLBACK was taken for success, for a whole group.
func TestI8FailedCommitOfAGroupIsNoSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{Store: testonly.New(), commit: func([]string) error { return inbox.ErrCommitRolledBack }}
		store := inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{})
		got := together(t, store, []string{"a", "b"}, effect(t))
		for id, o := range got {
			if !o.done || o.err != nil || w.Get(id) != "x" {
				t.Errorf("%s: %t, %v, effect %q; want one effect, alone", id, o.done, o.err, w.Get(id))
			}
		}
		if len(w.groups) != 1 || len(w.singles) != 3 {
			t.Errorf("groups %q, alone %q; want one group, then each alone", w.groups, w.singles)
		}
	})
}

func TestDuplicatesInAGroupRunNoHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{Store: testonly.New()}
		store := inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{})
		for range 2 {
			together(t, store, []string{"b"}, effect(t))
		}
		got := together(t, store, []string{"a", "b", "c"}, effect(t))
		for id, want := range map[string]bool{"a": true, "b": false, "c": true} {
			if o := got[id]; o.done != want || o.err != nil || w.Get(id) != "x" {
				t.Errorf("%s: %t, %v, effect %q; want %t and one effect", id, o.done, o.err, w.Get(id), want)
			}
		}
	})
}

// Two copies were in one group: the claim statement saw one row, and both ran.
func TestI3CopiesAreNotInOneGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{Store: testonly.New()}
		store := inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{})
		hold := make(chan struct{})
		go func() {
			_, _ = store.Once(t.Context(), claim("first"), func(context.Context, *testonly.Tx) error { <-hold; return nil })
		}()
		synctest.Wait()
		var done atomic.Int64
		for range 4 {
			for _, id := range []string{"a", "b"} {
				go func() {
					ok, err := store.Once(t.Context(), claim(id), func(_ context.Context, tx *testonly.Tx) error { return count(tx, id) })
					if err != nil {
						t.Errorf("copy of %s: %v", id, err)
					}
					if ok {
						done.Add(1)
					}
				}()
			}
		}
		synctest.Wait()
		close(hold)
		synctest.Wait()
		if done.Load() != 2 || w.Get("a")+w.Get("b") != "xx" {
			t.Errorf("%d took effect, effects %q and %q; want one each", done.Load(), w.Get("a"), w.Get("b"))
		}
	})
}

func TestMemberLeavesWhenItsContextEnds(t *testing.T) {
	for _, tc := range []struct {
		name string
		when string // it "claims", "ends" in its own handler, has "ran", or its neighbour "runs"
		want error  // of the one whose context ended
	}{
		{"while its group is claimed", "claims", context.Canceled},
		{"before its turn", "runs", context.Canceled},
		{"in its own handler, which returns nil", "ends", context.Canceled},
		{"after its turn", "ran", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				w := &watched{Store: testonly.New()}
				if tc.when == "claims" {
					w.claim = func(ctx context.Context, _ []string) error {
						cancel()
						<-ctx.Done() // as a statement does that waits for a lock
						return ctx.Err()
					}
				}
				store := inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{})
				ids := []string{"a", "leaver", "z"}
				got := together(t, store, ids, func(id string) (context.Context, func(context.Context, *testonly.Tx) error) {
					if id == "leaver" {
						return ctx, func(_ context.Context, tx *testonly.Tx) error {
							if tc.when == "ends" {
								cancel()
							}
							return count(tx, id)
						}
					}
					return t.Context(), func(_ context.Context, tx *testonly.Tx) error {
						if tc.when == "runs" && id == "a" || tc.when == "ran" && id == "z" {
							cancel()
							time.Sleep(time.Second) // the leaver notices
						}
						return count(tx, id)
					}
				})
				cancel()
				if o := got["leaver"]; !errors.Is(o.err, tc.want) || o.done != (tc.want == nil) {
					t.Errorf("the one whose context ended: %t, %v; want %v", o.done, o.err, tc.want)
				}
				wantEffect := ""
				if tc.want == nil {
					wantEffect = "x"
				}
				if w.Get("leaver") != wantEffect {
					t.Errorf("its effect is %q, want %q", w.Get("leaver"), wantEffect)
				}
				for _, id := range []string{"a", "z"} {
					if o := got[id]; !o.done || o.err != nil || w.Get(id) != "x" {
						t.Errorf("neighbour %s: %t, %v, effect %q; want true and one effect", id, o.done, o.err, w.Get(id))
					}
				}
			})
		})
	}
}

func TestMemberLeavesTheQueueAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{Store: testonly.New()}
		store := inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{})
		hold := make(chan struct{})
		go func() {
			_, _ = store.Once(t.Context(), claim("first"), func(context.Context, *testonly.Tx) error { <-hold; return nil })
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		done, err := store.Once(ctx, claim("m"), func(_ context.Context, tx *testonly.Tx) error { return count(tx, "m") })
		if done || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("Once: %t, %v after %v; want the context's end after 1s", done, err, time.Since(start))
		}
		close(hold)
		synctest.Wait()
		if w.Get("m") != "" || len(w.groups) != 0 {
			t.Errorf("effect %q, groups %q; want none", w.Get("m"), w.groups)
		}
	})
}

func TestLingerIsTheLongestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{Store: testonly.New()}
		store := inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{Max: 3, Linger: 10 * time.Millisecond})
		start := time.Now()
		var waits sync.Map
		once := func(id string) {
			began := time.Now()
			if done, err := store.Once(t.Context(), claim(id), func(context.Context, *testonly.Tx) error { return nil }); !done || err != nil {
				t.Errorf("%s: %t, %v", id, done, err)
			}
			waits.Store(id, time.Since(began))
		}
		go once("a") // waits the whole of it
		time.Sleep(4 * time.Millisecond)
		go once("b")
		time.Sleep(20 * time.Millisecond)
		for _, id := range []string{"c", "d", "e"} { // full at once
			go once(id)
		}
		synctest.Wait()
		if got := time.Since(start); got != 24*time.Millisecond {
			t.Errorf("took %v, want 24ms", got)
		}
		for id, want := range map[string]time.Duration{"a": 10 * time.Millisecond, "b": 6 * time.Millisecond, "c": 0, "d": 0, "e": 0} {
			if got, _ := waits.Load(id); got != want {
				t.Errorf("%s waited %v, want %v", id, got, want)
			}
		}
		if want := [][]string{{"a", "b"}, {"c", "d", "e"}}; !slices.EqualFunc(w.groups, want, slices.Equal) {
			t.Errorf("groups %q, want %q", w.groups, want)
		}
	})
}

// Every message failed, and everything was done twice for ever.
func TestGroupsShrinkWhileTheyFailAndGrowAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failing := true
		w := &watched{Store: testonly.New(), commit: func([]string) error {
			if failing {
				return inbox.ErrCommitRolledBack
			}
			return nil
		}}
		store := inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{Max: 16})
		n := 0
		round := func() {
			ids := make([]string, 16)
			for i := range ids {
				n++
				ids[i] = fmt.Sprint("m", n)
			}
			got := together(t, store, ids, effect(t))
			for id, o := range got {
				if !o.done || o.err != nil || w.Get(id) != "x" {
					t.Fatalf("%s: %t, %v, effect %q; want one effect", id, o.done, o.err, w.Get(id))
				}
			}
			n++
			if _, err := w.Store.Prune(t.Context(), time.Now().Add(time.Hour), 1<<20); err != nil { // "first" comes again
				t.Fatal(err)
			}
		}
		sizes := func() (s []int) {
			for _, g := range w.groups {
				s = append(s, len(g))
			}
			return s
		}
		for range 4 {
			round()
		}
		if got, want := sizes(), []int{16, 8, 4}; len(got) < 3 || !slices.Equal(got[:3], want) || len(got) > 5 {
			t.Errorf("failing groups had sizes %v, want %v and then none for a while", got, want)
		}
		failing, w.groups = false, nil
		for range 8 {
			round()
		}
		if got := sizes(); len(got) == 0 || got[len(got)-1] != 16 {
			t.Errorf("groups that succeed had sizes %v, want 16 in the end", got)
		}
	})
}

// A message that fails again and again took its neighbours' group down each time.
func TestWhatIsTriedAgainRunsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{Store: testonly.New()}
		store := inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{})
		together(t, store, []string{"a", "again", "c"}, func(id string) (context.Context, func(context.Context, *testonly.Tx) error) {
			msg := delivered(id)
			f := flight.Ensure(msg)
			f.StartAttempt()
			if id == "again" {
				f.StartAttempt()
			}
			return f, func(_ context.Context, tx *testonly.Tx) error { return count(tx, id) }
		})
		if !slices.Contains(w.singles, "again") || len(w.groups) != 1 || slices.Contains(w.groups[0], "again") {
			t.Errorf("groups %q, alone %q; want the second attempt alone", w.groups, w.singles)
		}
	})
}

// The second run of a handler in one attempt made events with other ids, saw what the first had changed in the
// message, and kept the first one's receipt.
func TestI4SecondRunFindsNothingOfTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fail := true
		w := &watched{Store: testonly.New(), commit: func([]string) error {
			if fail {
				return inbox.ErrCommitRolledBack
			}
			return nil
		}}
		store := inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{})
		hold := make(chan struct{})
		var mu sync.Mutex
		seen := map[string][]string{}
		handler := inbox.Handler(store, "billing", func(ctx context.Context, tx *testonly.Tx, msg *message.Message) error {
			if msg.UUID == "first" {
				<-hold
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			f := flight.From(ctx)
			seen[f.ID] = append(seen[f.ID], fmt.Sprint(msg.UUID, msg.Metadata["k"], f.NextOutput(), f.Receipt()))
			msg.Metadata["k"], msg.UUID = "changed", "changed"
			flight.Give(ctx, flight.Stale)
			return nil
		})
		msgs := []*message.Message{delivered("first"), delivered("a"), delivered("b")}
		var wg sync.WaitGroup
		for _, msg := range msgs {
			wg.Go(func() {
				if err := handler(msg); err != nil {
					t.Errorf("%s: %v", msg.UUID, err)
				}
			})
			synctest.Wait()
		}
		close(hold)
		wg.Wait()
		for _, msg := range msgs[1:] {
			f := flight.From(msg.Context())
			if s := seen[f.ID]; len(s) != 2 || s[0] != s[1] || !strings.Contains(s[0], "1 none") {
				t.Errorf("%s: the handler saw %q, want the same twice", f.ID, s)
			}
			if f.Attempt != 0 || f.Receipt() != flight.Stale {
				t.Errorf("%s: attempt %d, receipt %s; want no attempt counted and the second run's receipt", f.ID, f.Attempt, f.Receipt())
			}
		}
	})
}

func TestGroupedAndMapGoTogether(t *testing.T) {
	type repository struct{ tx *testonly.Tx }
	for _, tc := range []struct {
		name string
		make func(*watched) inbox.Store[repository]
	}{
		{"Map of Grouped", func(w *watched) inbox.Store[repository] {
			return inbox.Map(inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{}), func(tx *testonly.Tx) repository { return repository{tx} })
		}},
		{"Grouped of Map", func(w *watched) inbox.Store[repository] {
			return inbox.Grouped(inbox.Map[*testonly.Tx](w, func(tx *testonly.Tx) repository { return repository{tx} }), inbox.GroupConfig{})
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &watched{Store: testonly.New()}
			store := tc.make(w)
			if !inbox.Same(store, w) || store.MaxConcurrency() != 100 || inbox.ObservedOf(store) == nil {
				t.Errorf("%s: same database %t, MaxConcurrency %d, observed %v", tc.name, inbox.Same(store, w), store.MaxConcurrency(), inbox.ObservedOf(store))
			}
			hold := make(chan struct{})
			var wg sync.WaitGroup
			for _, id := range []string{"first", "a", "b"} {
				wg.Go(func() {
					done, err := store.Once(t.Context(), claim(id), func(ctx context.Context, r repository) error {
						if id == "first" {
							<-hold
						}
						_, err := store.Advance(ctx, r, "c", id, 1)
						return errors.Join(err, count(r.tx, id))
					})
					if !done || err != nil {
						t.Errorf("%s: %s: %t, %v", tc.name, id, done, err)
					}
				})
				synctest.Wait()
			}
			close(hold)
			wg.Wait()
			if len(w.groups) != 1 || len(w.singles) != 1 || w.Get("a")+w.Get("b") != "xx" {
				t.Errorf("%s: groups %q, alone %q, effects %q and %q; want one group that holds", tc.name, w.groups, w.singles, w.Get("a"), w.Get("b"))
			}
		})
	}
}

// plainStore is a store of somebody else's, without groups.
type plainStore struct{ inbox.Store[*testonly.Tx] }

func TestGroupsNameWhatIsWrong(t *testing.T) {
	store := testonly.New()
	plain := plainStore{store}
	handle := func(context.Context, *testonly.Tx, []int) error { return nil }
	for _, tc := range []struct {
		store  inbox.Store[*testonly.Tx]
		config inbox.GroupConfig
		want   string
	}{
		{store, inbox.GroupConfig{Max: 201}, "inbox: GroupConfig.Max is 201: want 1 to 200"},
		{store, inbox.GroupConfig{Max: -1, Linger: -1, Parallel: -1}, "inbox: GroupConfig.Max is -1: want 1 to 200\n" +
			"inbox: GroupConfig.Linger is -1ns: want at least 0\ninbox: GroupConfig.Parallel is -1: want at least 1"},
		{nil, inbox.GroupConfig{}, "inbox: the store of the groups is nil"},
		{plain, inbox.GroupConfig{}, "inbox: inbox_test.plainStore is no inbox.GroupStore: it cannot claim many messages at once"},
		{
			inbox.Map(plain, func(tx *testonly.Tx) *testonly.Tx { return tx }),
			inbox.GroupConfig{},
			"inbox: the store under the mapped one is no inbox.GroupStore: it cannot claim many messages at once",
		},
	} {
		if _, err := inbox.NewBatcher(tc.store, tc.config, handle); err == nil || err.Error() != tc.want {
			t.Errorf("NewBatcher(%T, %+v): %v; want %s", tc.store, tc.config, err, tc.want)
		}
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || err.Error() != tc.want {
					t.Errorf("Grouped(%T, %+v): panic %v; want %s", tc.store, tc.config, err, tc.want)
				}
			}()
			inbox.Grouped(tc.store, tc.config)
		}()
	}
	if _, err := inbox.NewBatcher[*testonly.Tx, int](store, inbox.GroupConfig{}, nil); err == nil || !strings.Contains(err.Error(), "nil") {
		t.Errorf("NewBatcher without a function: %v; want an error", err)
	}
}

// The schedule is random, and so are failures, panics, ended contexts and copies: whatever is reported done has
// one effect, and nothing else has one.
func TestGroupsUnderRandomFailures(t *testing.T) {
	w := &watched{Store: testonly.New()}
	store := inbox.Grouped[*testonly.Tx](w, inbox.GroupConfig{Max: 8, Parallel: 2})
	const messages, copies = 200, 2
	var wg sync.WaitGroup
	var done [messages]atomic.Int64
	for i := range messages {
		for c := range copies {
			wg.Go(func() {
				defer func() { _ = recover() }()
				id := fmt.Sprint("m", i)
				for attempt := 0; ; attempt++ {
					ctx, cancel := context.WithCancel(t.Context())
					ok, err := store.Once(ctx, claim(id), func(ctx context.Context, tx *testonly.Tx) error {
						_ = count(tx, id)
						switch (i*7 + c + attempt) % 29 {
						case 0:
							return errors.New("failed")
						case 1:
							cancel()
						case 2:
							runtime.Gosched()
						case 3:
							if attempt == 0 {
								panic("boom")
							}
						}
						return nil
					})
					cancel()
					if ok {
						done[i].Add(1)
					}
					if err == nil {
						return
					}
				}
			})
		}
	}
	wg.Wait()
	for i := range messages {
		id, n := fmt.Sprint("m", i), done[i].Load()
		if effects := len(w.Get(id)); int64(effects) != n || n > 1 {
			t.Errorf("%s: %d times done, %d effects", id, n, effects)
		}
	}
}

func ExampleGrouped() {
	store := testonly.New()
	grouped := inbox.Grouped(store, inbox.GroupConfig{Max: 10})
	handler := inbox.Handler(grouped, "billing", func(_ context.Context, tx *testonly.Tx, msg *message.Message) error {
		tx.Set(msg.UUID, "invoiced")
		return nil
	})
	var deliveries sync.WaitGroup
	for _, uuid := range []string{"order-1", "order-2", "order-3", "order-2"} { // at the same moment, as a router does
		deliveries.Go(func() {
			if err := handler(delivered(uuid)); err != nil {
				fmt.Println(err)
			}
		})
	}
	deliveries.Wait()
	fmt.Println(store.Get("order-1"), store.Get("order-2"), store.Get("order-3"))
	// Output: invoiced invoiced invoiced
}
