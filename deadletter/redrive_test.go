package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/poison"
)

var errRefused = errors.New("refused")

func TestRedrivePublishesInOrderThenMarks(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	fill(t, s, 250) // several chunks
	pub := &channel{}
	var progress []int
	report, err := redriver(t, s, pub, func(c *deadletter.RedriveConfig) {
		c.Progress = func(r deadletter.RedriveReport) { progress = append(progress, r.Redriven) }
	}).Run(t.Context(), deadletter.Filter{Consumer: "billing.orders"})
	if err != nil || report.Redriven != 250 || report.Selected != 250 || len(report.Unsent) != 0 {
		t.Errorf("report %+v, %v; want 250 of 250", report, err)
	}
	if got := pub.ids(); !slices.Equal(got, wantIDs(250)) {
		t.Errorf("published %d messages, want 250 in the order of their failures: %q", len(got), got)
	}
	if pub.topics[0] != "billing.orders.REDRIVE" {
		t.Errorf("published to %s", pub.topics[0])
	}
	if want := []int{0, 100, 200, 250}; !slices.Equal(progress, want) {
		t.Errorf("progress %v, want %v", progress, want)
	}
	if got := states(t, s); !maps.Equal(got, map[deadletter.State]int64{deadletter.Redriven: 250}) {
		t.Errorf("states %v", got)
	}
	trail, err := s.Trail(t.Context(), "dead-007")
	if err != nil || len(trail) != 2 || trail[0].Action != "claim" || trail[1].Action != "redrive" || trail[1].Batch != "batch-1" ||
		trail[1].Actor != "ann" || trail[1].Reason != "ticket 812" {
		t.Errorf("trail %+v, %v", trail, err)
	}
	poison.Restore(pub.got[3])
	r := poison.RedriveOf(pub.got[3].Context())
	if r == nil || r.Batch != "batch-1" || r.Hops != 1 || string(pub.got[3].Payload) != `{"n":3}` {
		t.Errorf("restored: %+v, payload %s", r, pub.got[3].Payload)
	}
	again, err := redriver(t, s, pub).Run(t.Context(), deadletter.Filter{})
	if err != nil || again.Redriven != 0 || again.Selected != 0 {
		t.Errorf("a second run: %+v, %v; want nothing", again, err)
	}
}

func TestTwoOperatorsRedriveEachMessageOnce(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	const letters = 300
	fill(t, s, letters)
	pub := &channel{}
	reports := make([]deadletter.RedriveReport, 4)
	var wg sync.WaitGroup
	for i := range reports {
		wg.Go(func() {
			var err error
			if reports[i], err = redriver(t, s, pub).Run(t.Context(), deadletter.Filter{}); err != nil {
				t.Errorf("operator %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	got, total := pub.ids(), 0
	slices.Sort(got)
	if !slices.Equal(got, wantIDs(letters)) {
		t.Errorf("%d messages were published, want each of %d once", len(got), letters)
	}
	for _, r := range reports {
		total += r.Redriven
	}
	if total != letters || states(t, s)[deadletter.Redriven] != letters {
		t.Errorf("reported %d, states %v; want %d", total, states(t, s), letters)
	}
}

func TestOneUnsendableMessageDoesNotStopTheOthers(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	fill(t, s, 5)
	pub := &channel{refuse: func(_ string, m *message.Message) error {
		if m.UUID == "dead-002" {
			return errRefused
		}
		return nil
	}}
	report, err := redriver(t, s, pub).Run(t.Context(), deadletter.Filter{})
	if err != nil || report.Redriven != 4 || len(report.Unsent) != 1 || report.Unsent[0].ID != "dead-002" || !strings.Contains(report.Unsent[0].Why, "refused") {
		t.Errorf("report %+v, %v; want 4 redriven, dead-002 not", report, err)
	}
	for _, id := range wantIDs(5) {
		want := deadletter.Redriven
		if id == "dead-002" {
			want = deadletter.New
		}
		if l, err := s.One(t.Context(), id); err != nil || l.State != want || l.ClaimedBy != "" {
			t.Errorf("%s is %s, claimed by %q, %v; want %s", id, l.State, l.ClaimedBy, err, want)
		}
		// A copy of what went through before the refusal is for the inbox to remove.
		if n := count(pub.ids(), id); want == deadletter.Redriven && (n < 1 || n > 2) || want == deadletter.New && n != 0 {
			t.Errorf("%s was published %d times", id, n)
		}
	}
}

func count(ids []string, id string) int {
	n := 0
	for _, other := range ids {
		if other == id {
			n++
		}
	}
	return n
}

func TestBrokerThatIsGoneEndsTheRun(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	fill(t, s, 150)
	pub := &channel{refuse: func(string, *message.Message) error { return errRefused }}
	report, err := redriver(t, s, pub).Run(t.Context(), deadletter.Filter{})
	if !errors.Is(err, errRefused) || report.Redriven != 0 {
		t.Errorf("report %+v, %v; want the broker's error", report, err)
	}
	if got := states(t, s); !maps.Equal(got, map[deadletter.State]int64{deadletter.New: 150}) {
		t.Errorf("states %v, want all to be new again", got)
	}
	if pub.calls > 12 {
		t.Errorf("%d calls to a broker that is gone", pub.calls)
	}
}

// A canary's first step, and a low rate, take one letter at a time: each one waited for the broker that was gone, to the end of the selection.
func TestBrokerThatIsGoneEndsARunOfSmallChunks(t *testing.T) {
	for name, change := range map[string]func(*deadletter.RedriveConfig){
		"canary": func(c *deadletter.RedriveConfig) { c.Canary, c.Watcher = []int{1, 10}, watcher{done: all} },
		"rate":   func(c *deadletter.RedriveConfig) { c.Rate, c.ClaimTTL = 4, time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topics, err := deadletter.NewTopics(topicOf(t, 50), "orders.DLT")
				if err != nil {
					t.Fatal(err)
				}
				pub := &channel{refuse: func(string, *message.Message) error { return errRefused }}
				report, err := redriver(t, topics, pub, change).Run(t.Context(), deadletter.Filter{})
				if !errors.Is(err, errRefused) || report.Redriven != 0 || len(report.Unsent) != 10 || pub.calls != 10 {
					t.Errorf("gone from the beginning: %d redriven, %d unsent, %d calls, %v; want the broker's error after 10 calls", report.Redriven, len(report.Unsent), pub.calls, err)
				}

				// Each success begins the count anew.
				pub = &channel{refuse: func(_ string, m *message.Message) error {
					if m.UUID < "dead-040" && m.UUID[len(m.UUID)-1] != '9' {
						return errRefused
					}
					return nil
				}}
				report, err = redriver(t, topics, pub, change).Run(t.Context(), deadletter.Filter{})
				if err != nil || report.Redriven != 14 || len(report.Unsent) != 36 {
					t.Errorf("nine of ten are refused: %d redriven, %d unsent, %v; want 14, 36", report.Redriven, len(report.Unsent), err)
				}
			})
		})
	}
}

func TestInterruptedRedriveMarksWhatItSentAndGoesOn(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	fill(t, s, 10)
	ctx, cancel := context.WithCancel(t.Context())
	pub := &channel{}
	pub.refuse = func(_ string, m *message.Message) error {
		if m.UUID == "dead-004" {
			cancel()
		}
		return m.Context().Err()
	}
	slow := func(c *deadletter.RedriveConfig) { c.Rate = 1e6 } // one by one
	report, err := redriver(t, s, pub, slow).Run(ctx, deadletter.Filter{})
	if !errors.Is(err, context.Canceled) || report.Redriven != 4 {
		t.Errorf("report %+v, %v; want 4 and context.Canceled", report, err)
	}
	if got := states(t, s); !maps.Equal(got, map[deadletter.State]int64{deadletter.New: 6, deadletter.Redriven: 4}) {
		t.Errorf("states %v", got)
	}
	pub.refuse = nil
	report, err = redriver(t, s, pub).Run(t.Context(), deadletter.Filter{})
	if err != nil || report.Redriven != 6 || !slices.Equal(pub.ids(), wantIDs(10)) {
		t.Errorf("the second run: %+v, %v; published %q", report, err, pub.ids())
	}
}

// A message went round between its dead-letter topic and its consumer for days, since a script redrove all that was there.
func TestRedriveLoopIsRecognised(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	if _, err := s.Add(t.Context(),
		record(0, func(r *poison.Record) { r.Hops, r.Deaths = 5, 6 }),
		record(1, func(r *poison.Record) { r.Hops, r.Deaths = 0, 6 }), // redriven by hand, without a count of hops
		record(2, func(r *poison.Record) { r.Hops, r.Deaths = 4, 5 }),
	); err != nil {
		t.Fatal(err)
	}
	pub := &channel{}
	report, err := redriver(t, s, pub).Run(t.Context(), deadletter.Filter{})
	if err != nil || report.Redriven != 1 || len(report.Unsent) != 2 || !strings.Contains(report.Unsent[0].Why, "redrive loop") {
		t.Errorf("report %+v, %v; want two loops", report, err)
	}
	report, err = redriver(t, s, pub, func(c *deadletter.RedriveConfig) { c.MaxHops = 6 }).Run(t.Context(), deadletter.Filter{})
	if err != nil || report.Redriven != 2 {
		t.Errorf("with MaxHops 6: %+v, %v", report, err)
	}
}

func TestWhatWasRedrivenCanBeRedrivenByItsState(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	fill(t, s, 2)
	pub := &channel{}
	for i, f := range []deadletter.Filter{{}, {States: []deadletter.State{deadletter.Redriven}, IDs: []string{"dead-001"}}} {
		if _, err := redriver(t, s, pub).Run(t.Context(), f); err != nil {
			t.Fatalf("run %d: %v", i, err)
		}
	}
	if got := pub.ids(); !slices.Equal(got, []string{"dead-000", "dead-001", "dead-001"}) {
		t.Errorf("published %q", got)
	}
}

func TestLimitAndDryRun(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	fill(t, s, 5)
	pub := &channel{}
	r := redriver(t, s, pub, func(c *deadletter.RedriveConfig) { c.Limit = 2 })
	if counts, err := r.Count(t.Context(), deadletter.Filter{}); err != nil || counts[deadletter.New] != 5 || len(pub.got) != 0 {
		t.Errorf("Count: %v, %v, %d published", counts, err, len(pub.got))
	}
	if report, err := r.Run(t.Context(), deadletter.Filter{}); err != nil || report.Redriven != 2 || len(pub.got) != 2 {
		t.Errorf("report %+v, %v, %d published; want 2", report, err, len(pub.got))
	}
}

// The store's row of a message whose consumer parks it has a claim in the inbox: what was redriven was skipped as a duplicate.
func TestParkedMessageIsReleasedInsteadOfPublished(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	fill(t, s, 3)
	pub := &channel{}
	report, err := redriver(t, s, pub, func(c *deadletter.RedriveConfig) {
		c.Parked = func(_ context.Context, r poison.Record) (bool, error) { return r.ID == "dead-001", nil }
	}).Run(t.Context(), deadletter.Filter{})
	if err != nil || report.Redriven != 3 || report.Released != 1 || !slices.Equal(pub.ids(), []string{"dead-000", "dead-002"}) {
		t.Errorf("report %+v, %v; published %q", report, err, pub.ids())
	}
	fill2 := record(9)
	if _, err := s.Add(t.Context(), fill2); err != nil {
		t.Fatal(err)
	}
	report, err = redriver(t, s, pub, func(c *deadletter.RedriveConfig) {
		c.Parked = func(context.Context, poison.Record) (bool, error) { return false, errRefused }
	}).Run(t.Context(), deadletter.Filter{})
	if !errors.Is(err, errRefused) || report.Redriven != 0 || states(t, s)[deadletter.New] != 1 {
		t.Errorf("a ledger that fails: %+v, %v, %v; want nothing to be published", report, err, states(t, s))
	}
}

// watcher is a Watcher whose answers the test gives.
type watcher struct {
	failed func() []poison.Record
	done   func(ids []string) ([]string, error)
}

func (w watcher) Failed(context.Context, string) ([]poison.Record, error) {
	if w.failed == nil {
		return nil, nil
	}
	return w.failed(), nil
}

func (w watcher) Done(_ context.Context, _ string, ids []string) ([]string, error) {
	return w.done(ids)
}

func all(ids []string) ([]string, error) { return ids, nil }

func TestCanaryStopsWhenAMessageFailsAgain(t *testing.T) {
	for _, tc := range []struct {
		failAfter, wantSent int
	}{{1, 1}, {5, 11}, {100, 30}} {
		s := newStore(t, openSQLite(t, "").DeadLetters())
		fill(t, s, 30)
		pub := &channel{}
		w := watcher{done: all, failed: func() []poison.Record {
			if len(pub.ids()) < tc.failAfter {
				return nil
			}
			return []poison.Record{record(500, func(r *poison.Record) { r.Deaths, r.Error = 2, "still down" })}
		}}
		report, err := redriver(t, s, pub, func(c *deadletter.RedriveConfig) { c.Canary, c.Watcher = []int{1, 10}, w }).Run(t.Context(), deadletter.Filter{})
		if got := len(pub.ids()); got != tc.wantSent || report.Redriven != tc.wantSent {
			t.Errorf("fails after %d: %d were sent, %d reported; want %d", tc.failAfter, got, report.Redriven, tc.wantSent)
		}
		if stopped := tc.wantSent < 30; errors.Is(err, deadletter.ErrCanary) != stopped || stopped && (!strings.Contains(err.Error(), "still down") || len(report.FailedAgain) != 1) {
			t.Errorf("fails after %d: error %v, report %+v", tc.failAfter, err, report)
		}
	}
}

func TestCanaryWaitsForWhatIsNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tc := range map[string]struct {
			done func(polls int, ids []string) ([]string, error)
			want time.Duration
		}{
			"handled at once":         {func(_ int, ids []string) ([]string, error) { return ids, nil }, 0},
			"handled at the 4th poll": {func(polls int, ids []string) ([]string, error) { return ids[:min(len(ids), polls/4)], nil }, 3 * time.Second},
			"nobody can tell":         {func(int, []string) ([]string, error) { return nil, deadletter.ErrUnknown }, time.Minute},
		} {
			polls, began := 0, time.Now()
			var waited time.Duration
			pub := &channel{}
			w := watcher{done: func(ids []string) ([]string, error) { polls++; return tc.done(polls, ids) }}
			topics, err := deadletter.NewTopics(topicOf(t, 2), "orders.DLT")
			if err != nil {
				t.Fatal(err)
			}
			pub.refuse = func(string, *message.Message) error { waited = time.Since(began); return nil }
			if _, err := redriver(t, topics, pub, func(c *deadletter.RedriveConfig) {
				c.Canary, c.Watcher, c.CanaryWait, c.CanaryPoll = []int{1}, w, time.Minute, time.Second
			}).Run(t.Context(), deadletter.Filter{}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if waited != tc.want || len(pub.got) != 2 {
				t.Errorf("%s: the second message went after %v, %d sent; want %v, 2", name, waited, len(pub.got), tc.want)
			}
		}
	})
}

// The oldest letters were refused as redrive loops: the canary's steps were over before anything was sent, and all the others went at once.
func TestCanaryCountsWhatWasSent(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	fill(t, s, 30)
	loop := func(r *poison.Record) { r.Hops, r.LastFailure = 9, start.Add(-time.Hour) }
	for n := range 15 {
		if _, err := s.Add(t.Context(), record(100+n, loop)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct{ failAfter, wantSent int }{{1, 1}, {2, 11}} {
		pub := &channel{}
		w := watcher{done: all, failed: func() []poison.Record {
			if len(pub.ids()) < tc.failAfter {
				return nil
			}
			return []poison.Record{record(500)}
		}}
		report, err := redriver(t, s, pub, func(c *deadletter.RedriveConfig) { c.Canary, c.Watcher = []int{1, 10}, w }).Run(t.Context(), deadletter.Filter{})
		if got := len(pub.ids()); got != tc.wantSent || len(report.Unsent) != 15 || !errors.Is(err, deadletter.ErrCanary) {
			t.Errorf("fails after %d: %d were sent, %d refused, %v; want %d, 15, a canary that stops", tc.failAfter, got, len(report.Unsent), err, tc.wantSent)
		}
	}
}

// The consumer was down: the canary waited for its message in vain, and then sent it everything.
func TestCanaryStopsWhenItIsKnownThatNothingWasHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, tc := range map[string]struct {
			done     func(polls int, ids []string) ([]string, error)
			wantSent int
			stops    bool
		}{
			"one of two":            {func(_ int, ids []string) ([]string, error) { return ids[:1], nil }, 2, true},
			"none":                  {func(int, []string) ([]string, error) { return nil, nil }, 4, false}, // it may have no inbox
			"handled at the end":    {func(polls int, ids []string) ([]string, error) { return ids[:len(ids)*(polls/3)], nil }, 4, false},
			"nobody can tell":       {func(int, []string) ([]string, error) { return nil, deadletter.ErrUnknown }, 4, false},
			"nobody can tell later": {func(polls int, _ []string) ([]string, error) { return nil, unknownAfter(polls, 2) }, 4, false},
		} {
			polls := 0
			w := watcher{done: func(ids []string) ([]string, error) { polls++; return tc.done(polls, ids) }}
			topics, err := deadletter.NewTopics(topicOf(t, 4), "orders.DLT")
			if err != nil {
				t.Fatal(err)
			}
			pub, began := &channel{}, time.Now()
			report, err := redriver(t, topics, pub, func(c *deadletter.RedriveConfig) {
				c.Canary, c.Watcher, c.CanaryWait, c.CanaryPoll = []int{2}, w, 3*time.Second/2, time.Second
			}).Run(t.Context(), deadletter.Filter{})
			if errors.Is(err, deadletter.ErrCanary) != tc.stops || !tc.stops && err != nil || tc.stops && !strings.Contains(err.Error(), "not handled within 1.5s") {
				t.Errorf("%s: error %v", name, err)
			}
			if len(pub.got) != tc.wantSent || report.Redriven != tc.wantSent || time.Since(began) != 3*time.Second/2 {
				t.Errorf("%s: %d sent, report %+v after %v; want %d after 1.5s", name, len(pub.got), report, time.Since(began), tc.wantSent)
			}
		}
	})
}

// The consumer handles type A in the inbox's transaction and type B outside of it, or its inbox is elsewhere: the canary stopped though
// everything was handled.
func TestCanaryKnowsWhatWasNotHandledByOthersOfItsType(t *testing.T) {
	const a, b = "order.placed", "order.paid"
	for name, tc := range map[string]struct {
		types    []string // of the letters, by number
		same     []int    // letters of the first one's message
		parked   []int
		handled  []int // claims in the inbox
		steps    []int
		late     string // in the error; "": the canary goes on
		wantSent int
		untold   int
	}{
		"another type alone has claims":   {types: []string{a, b, a, b, a}, handled: []int{0, 2}, steps: []int{4}, wantSent: 5, untold: 2},
		"no claims at all":                {types: []string{a, a, a}, steps: []int{1, 1}, wantSent: 3, untold: 2},
		"its type has a claim":            {types: []string{a, b, a, b, a}, handled: []int{0, 1, 2}, steps: []int{4}, late: "1 of 4", wantSent: 4},
		"its type had one in a step":      {types: []string{a, a, a, a}, handled: []int{0}, steps: []int{1, 2}, late: "2 of 2", wantSent: 3},
		"it is still parked":              {types: []string{a, b, a}, parked: []int{1}, handled: []int{0}, steps: []int{2}, late: "1 of 2", wantSent: 1},
		"only parked ones were handled":   {types: []string{a, a, a}, parked: []int{0}, handled: []int{0}, steps: []int{2}, wantSent: 2, untold: 1},
		"two letters of a message, done":  {types: []string{a, a, a}, same: []int{0, 1}, handled: []int{0}, steps: []int{2}, wantSent: 3},
		"two letters of a message, waits": {types: []string{a, a, a, a}, same: []int{1, 2}, handled: []int{0}, steps: []int{3}, late: "1 of 2", wantSent: 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, openSQLite(t, "").DeadLetters())
			idOf := func(n int) string {
				if slices.Contains(tc.same, n) {
					n = tc.same[0]
				}
				return fmt.Sprint("ce:/shop e-", n)
			}
			for n, typ := range tc.types {
				r := record(n, func(r *poison.Record) {
					r.MessageID, r.Metadata["ce_type"] = idOf(n), typ
				})
				if _, err := s.Add(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
			w := watcher{done: func(ids []string) (done []string, _ error) {
				for _, n := range tc.handled {
					if slices.Contains(ids, idOf(n)) {
						done = append(done, idOf(n))
					}
				}
				return done, nil
			}}
			pub := &channel{}
			report, err := redriver(t, s, pub, func(c *deadletter.RedriveConfig) {
				c.Canary, c.Watcher, c.CanaryWait, c.CanaryPoll = tc.steps, w, 2*time.Millisecond, time.Millisecond
				c.Parked = func(_ context.Context, r poison.Record) (bool, error) {
					return slices.ContainsFunc(tc.parked, func(n int) bool { return r.MessageID == idOf(n) }), nil
				}
			}).Run(t.Context(), deadletter.Filter{States: []deadletter.State{deadletter.New, deadletter.Resolved}})
			if stops := tc.late != ""; errors.Is(err, deadletter.ErrCanary) != stops || !stops && err != nil || stops && !strings.Contains(err.Error(), ": "+tc.late+" messages") {
				t.Errorf("error %v, want %q", err, tc.late)
			}
			if len(pub.got) != tc.wantSent || report.Untold != tc.untold {
				t.Errorf("%d were sent, %d untold; want %d, %d", len(pub.got), report.Untold, tc.wantSent, tc.untold)
			}
		})
	}
}

func unknownAfter(polls, n int) error {
	if polls < n {
		return nil
	}
	return deadletter.ErrUnknown
}

// An operator confirmed three letters; a fourth came while the question was on the screen.
func TestOnlyWhatWasSeenIsRedriven(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	fill(t, s, 150)
	topics, err := deadletter.NewTopics(topicOf(t, 150), "orders.DLT")
	if err != nil {
		t.Fatal(err)
	}
	seen := []string{"dead-001", "dead-120", "dead-149"}
	for name, source := range map[string]deadletter.Source{"store": s, "topics": topics} {
		pub := &channel{}
		report, err := redriver(t, source, pub, func(c *deadletter.RedriveConfig) { c.Only = seen }).Run(t.Context(), deadletter.Filter{})
		if err != nil || report.Redriven != 3 || !slices.Equal(pub.ids(), seen) {
			t.Errorf("%s: %+v, %v, published %q; want %q", name, report, err, pub.ids(), seen)
		}
		pub = &channel{}
		if report, err := redriver(t, source, pub, func(c *deadletter.RedriveConfig) { c.Only = []string{} }).Run(t.Context(), deadletter.Filter{}); err != nil || len(pub.got) != 0 {
			t.Errorf("%s: none was seen: %+v, %v, %d published", name, report, err, len(pub.got))
		}
	}
}

func TestRateIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topics, err := deadletter.NewTopics(topicOf(t, 10), "orders.DLT")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var at []time.Duration
		pub := &channel{refuse: func(string, *message.Message) error { at = append(at, time.Since(began)); return nil }}
		if _, err := redriver(t, topics, pub, func(c *deadletter.RedriveConfig) { c.Rate = 4 }).Run(t.Context(), deadletter.Filter{}); err != nil {
			t.Fatal(err)
		}
		for i, got := range at {
			if want := time.Duration(i) * 250 * time.Millisecond; got != want {
				t.Errorf("message %d went after %v, want %v", i, got, want)
			}
		}
		if len(at) != 10 {
			t.Errorf("%d messages, want 10", len(at))
		}
	})
}

func TestRedriveConfigErrorsNameTheField(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	for want, change := range map[string]func(*deadletter.RedriveConfig){
		"Source":               func(c *deadletter.RedriveConfig) { c.Source = nil },
		"Publisher":            func(c *deadletter.RedriveConfig) { c.Publisher = nil },
		"the actor is empty":   func(c *deadletter.RedriveConfig) { c.Actor = "" },
		"the reason is empty":  func(c *deadletter.RedriveConfig) { c.Reason = "" },
		"MaxHops is -1":        func(c *deadletter.RedriveConfig) { c.MaxHops = -1 },
		"Rate is NaN":          func(c *deadletter.RedriveConfig) { c.Rate = math.NaN() },
		"Rate is -1":           func(c *deadletter.RedriveConfig) { c.Rate = -1 },
		"Limit is -1":          func(c *deadletter.RedriveConfig) { c.Limit = -1 },
		"ClaimTTL is 1ms":      func(c *deadletter.RedriveConfig) { c.ClaimTTL = time.Millisecond },
		"Canary[1] is 0":       func(c *deadletter.RedriveConfig) { c.Canary, c.Watcher = []int{1, 0}, watcher{} },
		"Watcher is nil":       func(c *deadletter.RedriveConfig) { c.Canary = []int{1} },
		"CanaryWait is -1ns":   func(c *deadletter.RedriveConfig) { c.CanaryWait = -1 },
		"CanaryPoll is -1ns":   func(c *deadletter.RedriveConfig) { c.CanaryPoll = -1 },
		"want at most 255 byt": func(c *deadletter.RedriveConfig) { c.Batch = strings.Repeat("b", 256) },
	} {
		c := deadletter.RedriveConfig{Source: s, Publisher: &channel{}, Actor: "ann", Reason: "x"}
		change(&c)
		if _, err := deadletter.NewRedriver(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// topic is a brokers.Reader over messages in memory.
type topic map[string][]*message.Message

// topicOf is orders.DLT with n dead letters.
func topicOf(t testing.TB, n int) topic {
	t.Helper()
	var all []poison.Record
	for i := range n {
		all = append(all, record(i))
	}
	return topic{"orders.DLT": deadMessages(t, all...)}
}

// deadMessages writes records as a dead-letter topic holds them.
func deadMessages(t testing.TB, records ...poison.Record) []*message.Message {
	t.Helper()
	var out []*message.Message
	for _, r := range records {
		// A redriven message is a dead letter and marks of its own, which Parse does not mind.
		m, err := (&poison.Redrive{Kind: poison.KindRedrive, Record: r}).Message(0)
		if err != nil {
			t.Fatal(err)
		}
		m.Metadata[poison.MetaError], m.Metadata[poison.MetaBatch] = r.Error, r.Batch
		out = append(out, m)
	}
	return out
}

func (tp topic) Read(ctx context.Context, name string, r brokers.Range, fn func(*message.Message) error) error {
	messages, there := tp[name]
	if !there {
		return fmt.Errorf("read %s: %w", name, brokers.ErrNoTopic)
	}
	from, to := r.From[-1], int64(len(messages))
	if end, ok := r.To[-1]; ok {
		to = min(to, end)
	}
	for i := from; i < to; i++ {
		m := messages[i].Copy()
		m.SetContext(brokers.WithDelivery(ctx, &brokers.Delivery{Topic: name, Partition: -1, Offset: i, Incarnation: "i-1"}))
		if err := fn(m); err != nil {
			return err
		}
	}
	return nil
}

func (tp topic) Ends(_ context.Context, name string) (map[int32]int64, error) {
	messages, there := tp[name]
	if !there {
		return nil, brokers.ErrNoTopic
	}
	return map[int32]int64{-1: int64(len(messages))}, nil
}

func TestTopicsWithoutADatabase(t *testing.T) {
	ctx := t.Context()
	tp := topicOf(t, 3)
	// e-1 died again, and something that is no dead letter came between.
	tp["orders.DLT"] = append(tp["orders.DLT"], message.NewMessage("stray", []byte("x")))
	tp["orders.DLT"] = append(tp["orders.DLT"], deadMessages(t, record(1, func(r *poison.Record) {
		r.ID, r.Deaths, r.Hops, r.LastFailure, r.Batch = "dead-again", 2, 1, start.Add(time.Hour), "b-9"
	}))...)
	topics, err := deadletter.NewTopics(tp, "orders.DLT", "not-there.DLT")
	if err != nil {
		t.Fatal(err)
	}
	letters, err := topics.List(ctx, deadletter.Filter{}, true, 10)
	var ids []string
	for _, l := range letters {
		ids = append(ids, l.ID)
	}
	if err != nil || !slices.Equal(ids, []string{"dead-again", "dead-002", "dead-000"}) {
		t.Errorf("List: %q, %v", ids, err)
	}
	if topics.Skipped != 1 || !errors.Is(topics.SkippedWhy, poison.ErrNotDeadLetter) {
		t.Errorf("skipped %d: %v", topics.Skipped, topics.SkippedWhy)
	}
	if counts, err := topics.Count(ctx, deadletter.Filter{MinDeaths: 2}); err != nil || counts[deadletter.New] != 1 {
		t.Errorf("Count: %v, %v", counts, err)
	}
	groups, err := topics.Groups(ctx, deadletter.Filter{}, 5)
	if err != nil || len(groups) != 1 || groups[0].Count != 3 || groups[0].Sample != "dead-again" {
		t.Errorf("Groups: %+v, %v", groups, err)
	}
	l, err := topics.One(ctx, "dead-002")
	if err != nil || string(l.Payload) != `{"n":2}` || l.Metadata["ce_id"] != "e-2" {
		t.Errorf("One: %+v, %v", l, err)
	}
	if _, err := topics.One(ctx, "none"); !errors.Is(err, deadletter.ErrNotFound) {
		t.Errorf("One of none: %v", err)
	}
	pub := &channel{}
	report, err := redriver(t, topics, pub).Run(ctx, deadletter.Filter{})
	if err != nil || report.Redriven != 3 || !slices.Equal(pub.ids(), []string{"dead-000", "dead-002", "dead-again"}) {
		t.Errorf("redrive: %+v, %v, %q", report, err, pub.ids())
	}
	if r, err := poison.ParseRedrive(pub.got[2]); err != nil || r.Hops != 2 || r.Record.Deaths != 2 {
		t.Errorf("the message that died again: %+v, %v; want its second hop", r, err)
	}
	if _, err := deadletter.NewTopics(nil, "x"); err == nil {
		t.Error("no reader: no error")
	}
	if _, err := deadletter.NewTopics(tp); err == nil {
		t.Error("no topics: no error")
	}
}

// A message died twice, and was replayed after months and died again: the replay counts its deaths from 1, and its dead letter was left out.
func TestTopicsShowTheLastDeath(t *testing.T) {
	died := func(id string, deaths int, at time.Duration) poison.Record {
		return record(1, func(r *poison.Record) { r.ID, r.Deaths, r.LastFailure = id, deaths, start.Add(at) })
	}
	for name, tc := range map[string]struct {
		deaths []poison.Record
		want   string
	}{
		"a redrive":                        {[]poison.Record{died("first", 1, 0), died("second", 2, time.Hour)}, "second"},
		"a redrive, by a clock behind":     {[]poison.Record{died("first", 1, time.Hour), died("second", 2, 0)}, "second"},
		"a replay":                         {[]poison.Record{died("second", 2, 0), died("replayed", 1, time.Hour)}, "replayed"},
		"a replay of a replay":             {[]poison.Record{died("first", 1, 0), died("replayed", 1, time.Hour)}, "replayed"},
		"twice":                            {[]poison.Record{died("first", 1, 0), died("first", 1, 0)}, "first"},
		"what was read too late":           {[]poison.Record{died("second", 2, time.Hour), died("first", 1, 0)}, "second"},
		"what was read too late, at once":  {[]poison.Record{died("second", 2, 0), died("first", 1, 0)}, "second"},
		"a replay, and read again, in two": {[]poison.Record{died("second", 2, 0), died("replayed", 1, time.Hour), died("first", 1, -time.Hour)}, "replayed"},
	} {
		topics, err := deadletter.NewTopics(topic{"orders.DLT": deadMessages(t, tc.deaths...)}, "orders.DLT")
		if err != nil {
			t.Fatal(err)
		}
		letters, err := topics.List(t.Context(), deadletter.Filter{}, false, 10)
		if err != nil || len(letters) != 1 || letters[0].ID != tc.want {
			t.Errorf("%s: %d letters, %v; want %s alone: %+v", name, len(letters), err, tc.want, letters)
		}
	}
}

func TestTailSeesWhatFailsAgain(t *testing.T) {
	tp := topicOf(t, 2)
	tail, err := deadletter.NewTail(t.Context(), tp, "orders.DLT", "later.DLT")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tail.Failed(t.Context(), "b-1"); err != nil || len(got) != 0 {
		t.Errorf("%d failed, %v; want none", len(got), err)
	}
	failed := func(n int, batch string) poison.Record {
		return record(n, func(r *poison.Record) { r.Batch, r.Deaths = batch, 2 })
	}
	tp["orders.DLT"] = append(tp["orders.DLT"], deadMessages(t, failed(5, "b-1"), failed(6, "other"))...)
	tp["later.DLT"] = deadMessages(t, failed(7, "b-1"))
	for range 2 { // and says so again
		got, err := tail.Failed(t.Context(), "b-1")
		if err != nil || len(got) != 2 {
			t.Errorf("%d failed in b-1, %v; want 2", len(got), err)
		}
	}
}

func TestReferencesAreResolvedFromTheBroker(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	reference := func(n int, change func(*poison.Record)) poison.Record {
		return record(n, func(r *poison.Record) {
			r.Reference, r.Payload, r.Metadata, r.Key = true, nil, nil, nil
			r.Offset, r.Incarnation = 1, "i-1"
			change(r)
		})
	}
	if _, err := s.Add(t.Context(),
		reference(0, func(*poison.Record) {}),
		reference(1, func(r *poison.Record) { r.Offset = 99 }),
		reference(2, func(r *poison.Record) { r.Incarnation = "i-0" }),
		reference(3, func(r *poison.Record) { r.Topic = "gone" }),
		reference(4, func(r *poison.Record) { r.Offset = -1 }),
	); err != nil {
		t.Fatal(err)
	}
	big := message.NewMessage("u-0", []byte("as large as can be"))
	big.Metadata = message.Metadata{"ce_type": "order.placed"}
	tp := topic{"orders": {message.NewMessage("other", nil), big}}
	pub := &channel{}
	report, err := redriver(t, s, pub, func(c *deadletter.RedriveConfig) { c.Original = deadletter.OriginalFrom(tp) }).Run(t.Context(), deadletter.Filter{})
	if err != nil || report.Redriven != 1 || len(report.Unsent) != 4 {
		t.Fatalf("report %+v, %v; want 1 redriven, 4 not", report, err)
	}
	if m := pub.got[0]; string(m.Payload) != "as large as can be" || m.Metadata["ce_type"] != "order.placed" {
		t.Errorf("redriven: %s %v", m.Payload, m.Metadata)
	}
	for i, want := range []string{"not there any more", "made anew", "no such topic", "offset is not known"} {
		if got := report.Unsent[i].Why; !strings.Contains(got, want) {
			t.Errorf("unsent %d: %s; want %q", i, got, want)
		}
	}
	report, err = redriver(t, s, pub).Run(t.Context(), deadletter.Filter{})
	if err != nil || len(report.Unsent) != 4 || !strings.Contains(report.Unsent[0].Why, "cannot be read from this broker") {
		t.Errorf("without a reader: %+v, %v", report, err)
	}
}

func TestKeepPurgesWhatIsDoneWithAndOld(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	fill(t, s, 3)
	if _, err := s.Add(t.Context(), record(7, func(r *poison.Record) { r.LastFailure = time.Now() })); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Discard(t.Context(), deadletter.Filter{IDs: []string{"dead-000", "dead-001", "dead-007"}}, deadletter.By{Actor: "ann", Reason: "x"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Keep(ctx, 24*time.Hour, func(err error) { t.Error(err) }) }()
	await(t, "what is old to be purged", func() bool { return states(t, s)[deadletter.Discarded] == 1 })
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Keep: %v", err)
	}
	if got := states(t, s); !maps.Equal(got, map[deadletter.State]int64{deadletter.New: 1, deadletter.Discarded: 1}) {
		t.Errorf("states %v: what is new, and what is not old, stays", got)
	}
	if err := s.Keep(t.Context(), 0, nil); err == nil {
		t.Error("a retention of 0: no error")
	}
}
