// Package ledgersuite holds the tests that a ledger.Store must pass.
package ledgersuite

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headrace-go/headrace/ledger"
)

// limit bounds every wait of the suite.
const limit = 30 * time.Second

// terms never let a lease run out within a test, and forget nothing.
var terms = ledger.Terms{TTL: time.Hour, Retention: 24 * time.Hour, MaxSuspects: 1000}

// Run runs the suite on a store, each test with a service of its own.
func Run(t *testing.T, store ledger.Store) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, subject)
	}{
		{"FirstRunIsFresh", testFresh},
		{"CleanStopsLeaveNothing", testClean},
		{"StartsOfADeadRunAreTheSuspects", testSuspects},
		{"LeaseThatRanOutIsADeath", testLease},
		{"RunThatWasTakenForDeadTakesItsStartsBack", testTakenBack},
		{"TwoDeathsAloneConvict", testConvict},
		{"StartElsewhereIsNotDoubled", testElsewhere},
		{"AnnouncedStopConvictsNobody", testStopping},
		{"ClearedSuspectIsForgotten", testClear},
		{"ReplicasShareSuspects", testReplicas},
		{"ServicesAreApart", testServices},
		{"MissesCountUncleanEndsWithoutStarts", testMisses},
		{"NamesAreKeptByteForByte", testNames},
		{"SuspicionsAreBounded", testBounds},
		{"LongListsAreOneCall", testLong},
		{"ConcurrentCallsAreWhole", testConcurrent},
		{"BehavesAsTheModel", testModel},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, subject{t: t, Store: store, service: test.name + rand.Text()}) })
	}
}

// subject is a store whose methods must succeed.
type subject struct {
	t *testing.T
	ledger.Store
	service string // of this test alone
}

func (s subject) context() context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	s.t.Cleanup(cancel)
	return ctx
}

func (s subject) must(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
}

func (s subject) run(id string) ledger.Run { return s.on(id, "host") }

func (s subject) on(id, instance string) ledger.Run {
	return ledger.Run{Service: s.service, ID: id, Instance: instance}
}

func key(id string) ledger.Key { return ledger.Key{Consumer: "orders", ID: id} }

func keys(ids ...string) []ledger.Key {
	list := make([]ledger.Key, len(ids))
	for i, id := range ids {
		list[i] = key(id)
	}
	return list
}

func (s subject) begin(r ledger.Run) ledger.Standing {
	s.t.Helper()
	standing, err := s.Begin(s.context(), r, terms)
	s.must("begin "+r.ID, err)
	return standing
}

func (s subject) beat(r ledger.Run) ledger.Standing {
	s.t.Helper()
	standing, err := s.Beat(s.context(), r, terms)
	s.must("beat "+r.ID, err)
	return standing
}

func (s subject) record(r ledger.Run, done, begun []ledger.Key) []ledger.Suspect {
	s.t.Helper()
	suspects, err := s.Record(s.context(), r, done, begun)
	s.must("record of "+r.ID, err)
	return suspects
}

func (s subject) alone(r ledger.Run, k ledger.Key) ledger.Suspect {
	s.t.Helper()
	suspect, err := s.Alone(s.context(), r, k, false)
	s.must("alone of "+r.ID, err)
	return suspect
}

func (s subject) wantSuspects(what string, want ...string) {
	s.t.Helper()
	got, err := s.Suspects(s.context(), s.service, terms.Retention, 1000)
	s.must("list suspects", err)
	if !slices.Equal(got, keys(want...)) {
		s.t.Errorf("%s: got the suspects %v, want %v", what, got, want)
	}
}

// starts names the starts of a suspect: "run", with a star if it was alone.
func starts(suspect ledger.Suspect) string {
	var list []string
	for _, st := range suspect.Starts {
		name := st.Run
		if st.Alone {
			name += "*"
		}
		list = append(list, name)
	}
	return strings.Join(list, " ")
}

func (s subject) wantStarts(what string, got ledger.Suspect, want string) {
	s.t.Helper()
	if starts(got) != want {
		s.t.Errorf("%s: got the starts %q, want %q", what, starts(got), want)
	}
}

func testFresh(t *testing.T, s subject) {
	s.must("check", s.Check(s.context()))
	if got := s.begin(s.run("a")); !got.Fresh || got.Alarms != 0 || got.Lost {
		t.Errorf("first run: got %+v, want a fresh one without alarms", got)
	}
	if got := s.begin(s.on("b", "other")); got.Fresh || got.Alarms != 0 {
		t.Errorf("second run: got %+v, want one that is not fresh, without alarms", got)
	}
}

func testClean(t *testing.T, s subject) {
	s.begin(s.run("a"))
	s.record(s.run("a"), nil, keys("1", "2"))
	s.must("end", s.End(s.context(), s.run("a")))
	s.must("end again", s.End(s.context(), s.run("a")))
	if got := s.begin(s.run("b")); got.Alarms != 0 {
		t.Errorf("after a clean stop: got %+v, want no alarm", got)
	}
	s.wantSuspects("after a clean stop")
	if _, err := s.Record(s.context(), s.run("a"), nil, keys("3")); !errors.Is(err, ledger.ErrLost) {
		t.Errorf("record of a run that has ended: got %v, want ErrLost", err)
	}
	if _, err := s.Alone(s.context(), s.run("a"), key("3"), false); !errors.Is(err, ledger.ErrLost) {
		t.Errorf("alone of a run that has ended: got %v, want ErrLost", err)
	}
}

func testSuspects(t *testing.T, s subject) {
	s.begin(s.run("a"))
	if got := s.record(s.run("a"), nil, keys("1", "2", "3")); len(got) != 0 {
		t.Errorf("no one has died: got the suspects %v, want none", got)
	}
	s.record(s.run("a"), keys("2"), keys("4"))
	s.record(s.run("a"), keys("4"), keys("4")) // done, and begun again
	s.wantSuspects("while the run lives")

	before := time.Now().Add(-time.Minute)
	got := s.begin(s.run("b")) // the same instance: a has died
	if got.Alarms != 1 || got.SinceAlarm > time.Minute || got.Misses != 0 {
		t.Errorf("after a death: got %+v, want one alarm, just now, no miss", got)
	}
	s.wantSuspects("after the death", "1", "3", "4")
	suspects := s.record(s.run("b"), nil, keys("5", "3", "2", "1"))
	if len(suspects) != 2 {
		t.Fatalf("1 and 3 are suspects: got %v", suspects)
	}
	for _, suspect := range suspects {
		s.wantStarts("suspect "+suspect.ID, suspect, "a")
		if suspect.Convicted() {
			t.Errorf("%s is convicted by one death among others", suspect.ID)
		}
		if st := suspect.Starts[0]; st.Instance != "host" || st.At.Before(before) || st.At.After(time.Now().Add(time.Minute)) {
			t.Errorf("got the start %+v, want one of host, now", st)
		}
	}
	if got := s.begin(s.run("c")); got.Alarms != 2 {
		t.Errorf("after a second death: got %+v, want two alarms", got)
	}
	s.wantSuspects("suspects are not recorded again", "1", "2", "3", "4", "5")
}

func testLease(t *testing.T, s subject) {
	short := terms
	short.TTL = time.Millisecond
	if _, err := s.Begin(s.context(), s.on("a", "one"), short); err != nil {
		t.Fatal(err)
	}
	s.record(s.on("a", "one"), nil, keys("1"))
	s.begin(s.on("b", "two"))
	deadline := time.Now().Add(limit)
	for s.beat(s.on("b", "two")).Alarms == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the lease of a millisecond did not run out")
		}
	}
	s.wantSuspects("after the lease ran out", "1")
	if got := s.beat(s.on("b", "two")); got.Alarms != 1 || got.Lost {
		t.Errorf("heartbeat after that: got %+v, want one alarm", got)
	}
}

func testTakenBack(t *testing.T, s subject) {
	s.begin(s.on("a", "one"))
	s.record(s.on("a", "one"), nil, keys("1"))
	s.alone(s.on("a", "one"), key("2"))
	s.begin(s.on("b", "one")) // the same instance, and yet both live
	s.wantSuspects("a is taken for dead", "1", "2")
	if got := s.beat(s.on("a", "one")); !got.Lost {
		t.Errorf("heartbeat of a: got %+v, want lost", got)
	}
	s.wantSuspects("a lives")
	if got := s.beat(s.on("a", "one")); got.Lost {
		t.Errorf("second heartbeat of a: got %+v, want not lost", got)
	}
	s.record(s.on("a", "one"), keys("1", "2"), keys("3"))
	s.begin(s.on("c", "one"))
	s.wantSuspects("both have died", "3")
}

func testConvict(t *testing.T, s subject) {
	s.begin(s.run("a"))
	s.record(s.run("a"), nil, keys("killer", "neighbour"))
	s.begin(s.run("b"))
	s.wantStarts("first time alone", s.alone(s.run("b"), key("killer")), "a")
	s.begin(s.run("c"))
	s.wantStarts("second time alone", s.alone(s.run("c"), key("killer")), "a b*")
	s.begin(s.run("d"))
	got := s.alone(s.run("d"), key("killer"))
	s.wantStarts("third time", got, "a b* c*")
	if !got.Convicted() {
		t.Errorf("two deaths alone: not convicted: %+v", got)
	}
	// It was not started, so this death is not its own.
	s.begin(s.run("e"))
	s.wantStarts("after the conviction", s.alone(s.run("e"), key("killer")), "a b* c*")
	suspects := s.record(s.run("e"), nil, keys("killer", "neighbour"))
	if len(suspects) != 2 || !suspects[0].Convicted() || suspects[1].Convicted() {
		t.Errorf("recorded together: got %+v, want the killer convicted and the neighbour not", suspects)
	}
	s.must("clear", s.Clear(s.context(), s.run("e"), key("killer")))
	s.wantSuspects("after the dead letter", "neighbour")
	if got := s.record(s.run("e"), nil, keys("killer")); len(got) != 0 {
		t.Errorf("redriven: got the suspects %v, want none", got)
	}
}

// A message came to another process while the one that had it was dead and not missed yet.
func testElsewhere(t *testing.T, s subject) {
	s.begin(s.on("a", "one"))
	s.begin(s.on("b", "two"))
	s.record(s.on("a", "one"), nil, keys("m", "n"))
	got := s.record(s.on("b", "two"), nil, keys("m", "free"))
	if len(got) != 1 || got[0].Key != key("m") || !got[0].Elsewhere || len(got[0].Starts) != 0 {
		t.Fatalf("m is in another process: got %+v, want m, elsewhere, without starts", got)
	}
	if got := s.alone(s.on("b", "two"), key("m")); !got.Elsewhere {
		t.Errorf("alone: got %+v, want elsewhere", got)
	}
	s.record(s.on("a", "one"), keys("m"), nil)
	if got := s.record(s.on("b", "two"), nil, keys("m")); len(got) != 0 {
		t.Errorf("the other one has returned it: got %+v, want none", got)
	}
	s.begin(s.on("c", "two"))
	s.wantSuspects("nothing was added twice", "free", "m")
	// Forced, since the other one does not end.
	if _, err := s.Alone(s.context(), s.on("c", "two"), key("n"), true); err != nil {
		t.Fatal(err)
	}
	s.begin(s.on("d", "two"))
	got = []ledger.Suspect{s.alone(s.on("d", "two"), key("n"))}
	s.wantStarts("n", got[0], "c*")
	if !got[0].Elsewhere {
		t.Errorf("n is still in the first process: got %+v", got[0])
	}
}

func testStopping(t *testing.T, s subject) {
	s.begin(s.run("a"))
	s.record(s.run("a"), nil, keys("m"))
	for i, id := range []string{"b", "c", "d"} {
		s.begin(s.run(id))
		if got := s.alone(s.run(id), key("m")); got.Convicted() || len(got.Starts) != i+1 {
			t.Errorf("after %d announced stops: got %+v", i, got)
		}
		s.must("announce", s.Stopping(s.context(), s.run(id)))
	}
	if got := s.begin(s.run("e")); got.Alarms != 4 {
		t.Errorf("a stop that left a start is unclean: got %+v, want 4 alarms", got)
	}
	s.must("announce", s.Stopping(s.context(), s.run("e")))
	if got := s.begin(s.run("f")); got.Alarms != 4 || got.Misses != 0 {
		t.Errorf("a stop that left none is not: got %+v, want 4 alarms", got)
	}
}

func testClear(t *testing.T, s subject) {
	s.begin(s.on("x", "other"))
	s.begin(s.run("a"))
	s.record(s.run("a"), nil, keys("1", "2"))
	s.begin(s.run("b"))
	s.alone(s.run("b"), key("1"))
	s.record(s.run("b"), keys("1"), nil) // it failed and survived
	s.wantSuspects("after a failure", "1", "2")
	s.alone(s.run("b"), key("1"))
	s.must("clear", s.Clear(s.context(), s.run("b"), key("1")))
	s.must("clear what is clear", s.Clear(s.context(), s.run("b"), key("1")))
	s.wantSuspects("after a success", "2")
	s.begin(s.run("c"))
	s.wantSuspects("after the death of the one that cleared it", "2")
	// A start of another process that lives is its own.
	s.record(s.on("x", "other"), nil, keys("3"))
	s.must("clear", s.Clear(s.context(), s.run("c"), key("3")))
	s.begin(s.on("y", "other"))
	s.wantSuspects("after the death of the other", "2", "3")
}

func testReplicas(t *testing.T, s subject) {
	s.begin(s.on("a", "one"))
	s.begin(s.on("b", "two"))
	s.record(s.on("a", "one"), nil, keys("m"))
	s.begin(s.on("c", "one"))
	if got := s.beat(s.on("b", "two")); got.Alarms != 1 {
		t.Errorf("heartbeat of the other replica: got %+v, want one alarm", got)
	}
	if got := s.record(s.on("b", "two"), nil, keys("m")); len(got) != 1 {
		t.Errorf("delivered to the other replica: got the suspects %v, want m", got)
	}
	// Both have it at once: each alone in its process.
	for _, r := range []ledger.Run{s.on("b", "two"), s.on("c", "one")} {
		if _, err := s.Alone(s.context(), r, key("m"), true); err != nil {
			t.Fatal(err)
		}
	}
	s.begin(s.on("d", "one"))
	s.begin(s.on("e", "two"))
	if got := s.alone(s.on("e", "two"), key("m")); !got.Convicted() {
		t.Errorf("both died: got %+v, want convicted", got)
	}
}

func testServices(t *testing.T, s subject) {
	other := ledger.Run{Service: s.service + " other", ID: "a", Instance: "host"}
	s.begin(s.run("a"))
	if got := s.begin(other); !got.Fresh {
		t.Errorf("another service: got %+v, want fresh", got)
	}
	s.record(other, nil, keys("m"))
	if got := s.begin(s.run("b")); got.Alarms != 1 || got.Misses != 1 {
		t.Errorf("got %+v, want one alarm and one miss", got)
	}
	s.wantSuspects("of the first service")
	s.begin(ledger.Run{Service: s.service + " other", ID: "b", Instance: "host"})
	s.wantSuspects("of the first service, after the death of the other's")
}

func testMisses(t *testing.T, s subject) {
	for i, id := range []string{"a", "b", "c", "d"} {
		if got := s.begin(s.run(id)); got.Misses != i {
			t.Errorf("run %s: got %+v, want %d misses", id, got, i)
		}
	}
	s.record(s.run("d"), nil, keys("m"))
	if got := s.begin(s.run("e")); got.Misses != 0 || got.Alarms != 4 {
		t.Errorf("after a death with a start: got %+v, want 4 alarms and no miss", got)
	}
	s.begin(s.run("f"))
	s.must("end", s.End(s.context(), s.run("f")))
	if got := s.begin(s.run("g")); got.Misses != 0 || got.Alarms != 5 {
		t.Errorf("after a clean end: got %+v, want 5 alarms and no miss", got)
	}
}

func testNames(t *testing.T, s subject) {
	odd := []ledger.Key{
		{Consumer: "A", ID: "x"},
		{Consumer: "a", ID: "x"},
		{Consumer: "a", ID: "x "},
		{Consumer: "a ", ID: "x"},
		{Consumer: "a", ID: "X"},
		{Consumer: "ä☃", ID: `'"\?$1`},
		{Consumer: "a", ID: strings.Repeat("y", 255)},
		{Consumer: strings.Repeat("z", 255), ID: "\n"},
	}
	slices.SortFunc(odd, func(a, b ledger.Key) int { return strings.Compare(a.Consumer+"\x00"+a.ID, b.Consumer+"\x00"+b.ID) })
	s.begin(s.run("a"))
	s.record(s.run("a"), nil, odd)
	s.begin(s.run("b"))
	got, err := s.Suspects(s.context(), s.service, terms.Retention, 100)
	s.must("list", err)
	if !slices.Equal(got, odd) {
		t.Errorf("got the suspects\n%q\nwant\n%q", got, odd)
	}
	if got := s.record(s.run("b"), nil, odd); len(got) != len(odd) {
		t.Errorf("got %d suspects, want %d", len(got), len(odd))
	}
}

func testBounds(t *testing.T, s subject) {
	few := terms
	few.MaxSuspects = 3
	s.begin(s.run("a"))
	s.record(s.run("a"), nil, keys("old 1", "old 2", "old 3"))
	s.begin(s.run("b"))
	s.alone(s.run("b"), key("old 1"))
	// What is as old as the oldest that has to go goes with it, and SQLite's clock counts milliseconds: a fast machine
	// recorded the first new one within that of the old ones. A time that is a lower bound cannot be too short.
	<-time.After(2 * time.Millisecond)
	for i := range 3 {
		s.record(s.run("b"), nil, keys(fmt.Sprint("new ", i)))
	}
	if _, err := s.Begin(s.context(), s.run("c"), few); err != nil {
		t.Fatal(err)
	}
	s.wantSuspects("the oldest are forgotten, but those alone", "new 0", "new 1", "new 2", "old 1")
	<-time.After(2 * time.Millisecond) // as above: older than nothing is at least a millisecond old
	if got, err := s.Suspects(s.context(), s.service, 0, 1000); err != nil || len(got) != 0 {
		t.Errorf("suspects that are older than nothing: got %v, %v; want none", got, err)
	}
	short := terms
	short.Retention = 0
	if _, err := s.Begin(s.context(), s.run("d"), short); err != nil {
		t.Fatal(err)
	}
	s.wantSuspects("what is too old is forgotten")
	if got, err := s.Suspects(s.context(), s.service, terms.Retention, 0); err != nil || len(got) != 0 {
		t.Errorf("at most 0 suspects: got %v, %v", got, err)
	}
}

func testLong(t *testing.T, s subject) {
	s.begin(s.run("a"))
	for round := range 4 {
		var list []ledger.Key
		for i := range ledger.MaxRecord - round {
			list = append(list, key(fmt.Sprintf("%d-%03d", round, i)))
		}
		s.record(s.run("a"), nil, list)
		s.record(s.run("a"), list[:100], nil)
	}
	s.begin(s.run("b"))
	got, err := s.Suspects(s.context(), s.service, terms.Retention, 10_000)
	s.must("list", err)
	if want := 4*(ledger.MaxRecord-100) - 6; len(got) != want {
		t.Errorf("got %d suspects, want %d", len(got), want)
	}
	if suspects := s.record(s.run("b"), nil, got[:ledger.MaxRecord]); len(suspects) != ledger.MaxRecord {
		t.Errorf("got %d suspects of %d", len(suspects), ledger.MaxRecord)
	}
}

// testConcurrent lets replicas work side by side. Nobody dies, so there is nothing to suspect, and what is left
// is what was not removed.
func testConcurrent(t *testing.T, s subject) {
	const replicas, rounds = 4, 15
	var working sync.WaitGroup
	for i := range replicas {
		working.Go(func() {
			r := s.on(fmt.Sprint("r", i), fmt.Sprint("host", i))
			check := func(err error) {
				if err != nil {
					t.Errorf("replica %d: %v", i, err)
				}
			}
			_, err := s.Begin(s.context(), r, terms)
			check(err)
			for n := range rounds {
				list := keys(fmt.Sprint("m", n), fmt.Sprint("m", n+1), fmt.Sprint("own ", i))
				_, err := s.Record(s.context(), r, nil, list)
				check(err)
				standing, err := s.Beat(s.context(), r, terms)
				check(err)
				if standing.Lost || standing.Alarms != 0 {
					t.Errorf("replica %d: got %+v, want no alarm", i, standing)
				}
				_, err = s.Record(s.context(), r, list, nil)
				check(err)
			}
			_, err = s.Record(s.context(), r, nil, keys(fmt.Sprint("left ", i)))
			check(err)
		})
	}
	working.Wait()
	for i := range replicas {
		s.begin(s.on(fmt.Sprint("s", i), fmt.Sprint("host", i)))
	}
	s.wantSuspects("what was left", "left 0", "left 1", "left 2", "left 3")
}
