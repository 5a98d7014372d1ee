package ordering_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/headrace-go/headrace/ordering"
)

func pos(offset int64) ordering.Position { return ordering.Position{Offset: offset} }

// dispatched returns a tracker that reads from next and has dispatched offsets.
func dispatched(t *testing.T, next int64, offsets ...int64) *ordering.Tracker {
	t.Helper()
	tr := ordering.NewTracker(pos(next), 100)
	for _, o := range offsets {
		if err := tr.Dispatch(pos(o)); err != nil {
			t.Fatalf("Dispatch(%d): %v", o, err)
		}
	}
	return tr
}

func wantCommit(t *testing.T, tr *ordering.Tracker, want int64, wantOK bool) {
	t.Helper()
	got, ok := tr.BeginCommit()
	if ok != wantOK || got.Offset != want {
		t.Errorf("BeginCommit() = %d, %v, want %d, %v", got.Offset, ok, want, wantOK)
	}
}

// Record 12 was polled but not dispatched when the partition was revoked and the periodic commit
// fired. The highest seen offset was committed, and 12 was lost.
func TestK1CommitDoesNotPassWhatWasNotDispatched(t *testing.T) {
	tr := dispatched(t, 10, 10, 11)
	tr.Done(11)
	wantCommit(t, tr, 0, false) // 10 is incomplete: there is nothing to commit
	tr.Done(10)
	wantCommit(t, tr, 12, true)
}

// Offsets 5 to 9 were compacted away. The commit after 4 went to 10, beyond the end of the log, and the
// next owner fell to the reset policy.
func TestK2CommitIsAtMostCompletedPlusOne(t *testing.T) {
	tr := dispatched(t, 3, 4, 10)
	tr.Done(4)
	wantCommit(t, tr, 5, true) // not 10, although nothing lies between
}

// Low traffic: 7 is incomplete and the log ends at 9; 8 completes. "Highest + 1" was committed.
func TestK2LowTrafficAtTheEndOfTheLog(t *testing.T) {
	tr := dispatched(t, 7, 7, 8)
	tr.Done(8)
	wantCommit(t, tr, 0, false)
	if got := tr.Next(); got.Offset != 7 {
		t.Errorf("Next() = %d, want 7", got.Offset)
	}
}

// Two commits were built, 3 and then 5. The one of 3 was sent last, and the offset went back.
func TestK5CommitsAreSerialised(t *testing.T) {
	tr := dispatched(t, 0, 0, 1, 2, 3, 4)
	for o := range int64(3) {
		tr.Done(o)
	}
	wantCommit(t, tr, 3, true)
	tr.Done(3)
	tr.Done(4)
	wantCommit(t, tr, 0, false) // the one of 3 is under way
	tr.EndCommit(true)
	wantCommit(t, tr, 5, true)
	tr.EndCommit(false)
	wantCommit(t, tr, 5, true) // was not stored: offered again
	tr.EndCommit(true)
	wantCommit(t, tr, 0, false)
	if got := tr.Committed(); got != 5 {
		t.Errorf("Committed() = %d, want 5", got)
	}
}

// A late duplicate of a completion came after the commit, and took the offset back.
func TestK5LateCompletionDoesNotGoBack(t *testing.T) {
	tr := dispatched(t, 0, 0, 1)
	tr.Done(0)
	tr.Done(1)
	wantCommit(t, tr, 2, true)
	tr.EndCommit(true)
	if tr.Done(0) {
		t.Error("Done(0) = true a second time")
	}
	if got := tr.Next(); got.Offset != 2 {
		t.Errorf("Next() = %d, want 2", got.Offset)
	}
}

// 1 and 3 finished, 2 did not. 3 was committed.
func TestK6CommitStopsAtTheGap(t *testing.T) {
	tr := dispatched(t, 1, 1, 2, 3)
	tr.Done(3)
	tr.Done(1)
	wantCommit(t, tr, 2, true)
	if got := tr.AppendBeyond(nil, 10); !slices.Equal(got, []ordering.Position{pos(3)}) {
		t.Errorf("AppendBeyond() = %v, want offset 3", got)
	}
}

// The commit sent the offset of the last record, which then came again at each restart.
func TestK7CommitIsNextToRead(t *testing.T) {
	tr := dispatched(t, 41, 41)
	tr.Done(41)
	wantCommit(t, tr, 42, true)
}

func TestTrackerHandsOnLeaderEpochs(t *testing.T) {
	tr := ordering.NewTracker(ordering.Position{Offset: 5, Epoch: 1}, 10)
	for _, p := range []ordering.Position{{Offset: 5, Epoch: 1}, {Offset: 6, Epoch: 2}, {Offset: 8, Epoch: 3}} {
		if err := tr.Dispatch(p); err != nil {
			t.Fatal(err)
		}
	}
	tr.Done(5)
	tr.Done(8)
	if got, want := tr.Next(), (ordering.Position{Offset: 6, Epoch: 1}); got != want {
		t.Errorf("Next() = %v, want %v", got, want)
	}
	if got, want := tr.AppendBeyond(nil, 10), []ordering.Position{{Offset: 8, Epoch: 3}}; !slices.Equal(got, want) {
		t.Errorf("AppendBeyond() = %v, want %v", got, want)
	}
	tr.Done(6)
	if got, want := tr.Next(), (ordering.Position{Offset: 9, Epoch: 3}); got != want {
		t.Errorf("Next() = %v, want %v", got, want)
	}
}

func TestTrackerRefusesWhatItCannotTrack(t *testing.T) {
	tr := ordering.NewTracker(pos(10), 2)
	for _, o := range []int64{9, -1} {
		if err := tr.Dispatch(pos(o)); err == nil {
			t.Errorf("Dispatch(%d) below the start = nil, want an error", o)
		}
	}
	for _, o := range []int64{10, 12} {
		if err := tr.Dispatch(pos(o)); err != nil {
			t.Fatalf("Dispatch(%d): %v", o, err)
		}
	}
	if err := tr.Dispatch(pos(11)); err == nil || errors.Is(err, ordering.ErrTrackerFull) {
		t.Errorf("Dispatch(11) after 12 = %v, want an error about order", err)
	}
	if err := tr.Dispatch(pos(13)); !errors.Is(err, ordering.ErrTrackerFull) {
		t.Errorf("Dispatch(13) = %v, want ErrTrackerFull", err)
	}
	for _, o := range []int64{9, 11, 13} {
		if tr.Done(o) {
			t.Errorf("Done(%d) = true, but it was not dispatched", o)
		}
	}
	tr.Done(10)
	if err := tr.Dispatch(pos(13)); err != nil {
		t.Errorf("Dispatch(13) with room = %v", err)
	}
	wantPanic(t, "limit is 0", func() { ordering.NewTracker(pos(0), 0) })
	wantPanic(t, "next offset is -2", func() { ordering.NewTracker(pos(-2), 1) })
	wantPanic(t, "EndCommit", func() { ordering.NewTracker(pos(0), 1).EndCommit(true) })
}

// naiveTracker is what a tracker means: it keeps everything and searches it.
type naiveTracker struct {
	start, committed, inCommit int64
	offsets                    []int64
	epoch                      map[int64]int32
	done                       map[int64]bool
}

func (n *naiveTracker) next() int64 {
	next := n.start
	for _, o := range n.offsets {
		if !n.done[o] {
			break
		}
		next = o + 1
	}
	return next
}

func (n *naiveTracker) held() int {
	held := 0
	for _, o := range n.offsets {
		if o >= n.next() {
			held++
		}
	}
	return held
}

func TestTrackerAgreesWithNaiveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 300).Draw(t, "limit")
		start := rapid.Int64Range(0, 1000).Draw(t, "start")
		naive := &naiveTracker{start: start, committed: start, inCommit: -1, epoch: map[int64]int32{}, done: map[int64]bool{}}
		tr := ordering.NewTracker(pos(start), limit)
		highest := start - 1
		t.Repeat(map[string]func(*rapid.T){
			"dispatch": func(t *rapid.T) {
				for range rapid.IntRange(1, 100).Draw(t, "n") {
					p := ordering.Position{
						Offset: highest + rapid.SampledFrom([]int64{1, 1, 1, 2, 7}).Draw(t, "step"),
						Epoch:  rapid.Int32Range(0, 3).Draw(t, "epoch"),
					}
					full := naive.held() == limit
					if err := tr.Dispatch(p); errors.Is(err, ordering.ErrTrackerFull) != full {
						t.Fatalf("Dispatch(%v) with %d of %d held = %v", p, naive.held(), limit, err)
					}
					if full {
						return
					}
					highest = p.Offset
					naive.offsets = append(naive.offsets, p.Offset)
					naive.epoch[p.Offset] = p.Epoch
				}
			},
			"done": func(t *rapid.T) {
				for range rapid.IntRange(1, 100).Draw(t, "n") {
					o := rapid.Int64Range(max(start, naive.next())-2, highest+2).Draw(t, "offset")
					want := slices.Contains(naive.offsets, o) && !naive.done[o]
					if got := tr.Done(o); got != want {
						t.Fatalf("Done(%d) = %v, want %v", o, got, want)
					}
					if want {
						naive.done[o] = true
					}
				}
			},
			"begin commit": func(t *rapid.T) {
				wantOK := naive.inCommit < 0 && naive.next() > naive.committed
				p, ok := tr.BeginCommit()
				if ok != wantOK || ok && p.Offset != naive.next() {
					t.Fatalf("BeginCommit() = %v, %v, want %d, %v", p, ok, naive.next(), wantOK)
				}
				if ok {
					naive.inCommit = p.Offset
				}
			},
			"end commit": func(t *rapid.T) {
				if naive.inCommit < 0 {
					t.Skip("none is under way")
				}
				stored := rapid.Bool().Draw(t, "stored")
				tr.EndCommit(stored)
				if stored {
					naive.committed = naive.inCommit
				}
				naive.inCommit = -1
			},
			"": func(t *rapid.T) {
				next := naive.next()
				want := ordering.Position{Offset: next, Epoch: naive.epoch[next-1]}
				if got := tr.Next(); got != want {
					t.Fatalf("Next() = %v, want %v", got, want)
				}
				if got := tr.Committed(); got != naive.committed {
					t.Fatalf("Committed() = %d, want %d", got, naive.committed)
				}
				if got, want := tr.Span(), highest+1-naive.committed; got != want {
					t.Fatalf("Span() = %d, want %d", got, want)
				}
				incomplete, beyond := 0, []ordering.Position(nil)
				for _, o := range naive.offsets {
					switch {
					case !naive.done[o]:
						incomplete++
					case o >= next:
						beyond = append(beyond, ordering.Position{Offset: o, Epoch: naive.epoch[o]})
					}
				}
				if got := tr.Incomplete(); got != incomplete {
					t.Fatalf("Incomplete() = %d, want %d", got, incomplete)
				}
				few := rapid.IntRange(0, 10).Draw(t, "few")
				for _, limit := range []int{few, 1 << 30} {
					if got, want := tr.AppendBeyond(nil, limit), beyond[:min(limit, len(beyond))]; !slices.Equal(got, want) {
						t.Fatalf("AppendBeyond(%d) = %v, want %v", limit, got, want)
					}
				}
			},
		})
	})
}

func wantPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
			t.Errorf("panic %q, want one with %q", got, want)
		}
	}()
	f()
}

func BenchmarkTracker(b *testing.B) {
	for name, lag := range map[string]int64{"in order": 0, "64 behind": 64, "1024 behind": 1024} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			tr := ordering.NewTracker(pos(0), 1<<16)
			o := int64(0)
			for b.Loop() {
				if err := tr.Dispatch(pos(o)); err != nil {
					b.Fatal(err)
				}
				// All but each hundredth complete at once; those complete lag offsets later.
				if o%100 != 0 || lag == 0 {
					tr.Done(o)
				}
				if late := o - lag; late >= 0 && late%100 == 0 {
					tr.Done(late)
				}
				o++
			}
		})
	}
}

func ExampleTracker() {
	tr := ordering.NewTracker(ordering.Position{Offset: 100}, 10_000)
	for _, offset := range []int64{100, 101, 103} { // 102 is a transaction marker
		if err := tr.Dispatch(ordering.Position{Offset: offset, Epoch: 7}); err != nil {
			fmt.Println(err)
		}
	}
	tr.Done(103)
	tr.Done(100)
	fmt.Println("next to read:", tr.Next().Offset)
	fmt.Println("done beyond:", tr.AppendBeyond(nil, 100))
	tr.Done(101)
	if p, ok := tr.BeginCommit(); ok {
		fmt.Println("commit:", p.Offset, "epoch:", p.Epoch)
		tr.EndCommit(true)
	}
	// Output:
	// next to read: 101
	// done beyond: [{103 7}]
	// commit: 104 epoch: 7
}
