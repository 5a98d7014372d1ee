package main

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func every(kind) bool { return true }

var five = map[string]string{"kafka": kafka, "redis": redis, "nats": nats, "amqp": amqp, "postgres": postgres}

func TestPlanIsAFunctionOfItsSeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed, d := rapid.Uint64().Draw(t, "seed"), time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "duration"))
		a, b := plan(seed, d, five, every), plan(seed, d, five, every)
		if !slices.Equal(a, b) {
			t.Fatalf("two plans of seed %d differ:\n%v\n%v", seed, a, b)
		}
	})
	if a, b := plan(1, time.Minute, five, every), plan(2, time.Minute, five, every); slices.Equal(a, b) {
		t.Errorf("seeds 1 and 2 have the same plan:\n%v", a)
	}
}

// A pipeline's trouble is the same whatever runs beside it, so that a failing one can be run alone.
func TestPlanOfAPipelineIsItsOwn(t *testing.T) {
	of := func(pipelines map[string]string) []action {
		return slices.DeleteFunc(plan(7, 5*time.Minute, pipelines, every), func(a action) bool { return a.Pipeline != "redis" })
	}
	if all, alone := of(five), of(map[string]string{"redis": redis}); !slices.Equal(all, alone) {
		t.Errorf("beside others: %v\nalone: %v", all, alone)
	}
}

func TestPlanLeavesTimeToRecover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "duration"))
		free := map[string]time.Duration{}
		for _, a := range plan(rapid.Uint64().Draw(t, "seed"), d, five, every) {
			if a.At < max(warmUp, free[a.Pipeline]) {
				t.Fatalf("%v at %v, want not before %v", a, a.At, free[a.Pipeline])
			}
			if a.At+a.For > d {
				t.Fatalf("%v at %v ends after %v", a, a.At, d)
			}
			free[a.Pipeline] = a.At + a.For + leastOf
		}
	})
}

func TestPlanHasEveryKindBeforeOneComesTwice(t *testing.T) {
	five := map[string]string{"kafka": kafka, "redis": redis, "cluster": kafkaCluster, "postgres": postgres}
	counts := map[string]map[kind]int{}
	for _, a := range plan(3, 20*time.Minute, five, every) {
		if counts[a.Pipeline] == nil {
			counts[a.Pipeline] = map[kind]int{}
		}
		counts[a.Pipeline][a.Kind]++
	}
	for _, lane := range []struct {
		name       string
		has, lacks kind
	}{
		{"kafka", killBroker, changeLeader},
		{"redis", stopBroker, stopDatabase},
		{"cluster", changeLeader, killBroker},
		{"postgres", holeDatabase, holeBroker},
		{shared, jumpClock, killConsumer},
	} {
		got := counts[lane.name]
		if got[lane.has] == 0 || got[lane.lacks] != 0 {
			t.Errorf("%s has %v, want %s and no %s", lane.name, got, lane.has, lane.lacks)
		}
		least, most := 1<<30, 0
		for _, n := range got {
			least, most = min(least, n), max(most, n)
		}
		if most > least+1 {
			t.Errorf("%s has %v: want each kind about as often", lane.name, got)
		}
	}
}

// The short run of CI has room for every kind on every pipeline, or nearly so.
func TestPlanOfThreeMinutesIsVaried(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := map[string]map[kind]bool{}
		for _, a := range plan(rapid.Uint64().Draw(t, "seed"), 3*time.Minute, five, every) {
			if kinds[a.Pipeline] == nil {
				kinds[a.Pipeline] = map[kind]bool{}
			}
			kinds[a.Pipeline][a.Kind] = true
		}
		for name := range five {
			if n := len(kinds[name]); n < 12 {
				t.Errorf("%s has %d kinds, want 12: %v", name, n, kinds[name])
			}
		}
		if n := len(kinds[shared]); n != 2 {
			t.Errorf("what is shared has %d kinds, want 2", n)
		}
	})
}

func TestActionsAreChosenByWhatTheyBeginWith(t *testing.T) {
	wanted, err := kindsWanted("kill,freeze-relay")
	if err != nil {
		t.Fatal(err)
	}
	for k, want := range map[kind]bool{killConsumer: true, killBroker: true, freezeRelay: true, freezeConsumer: false, stopBroker: false} {
		if got := wanted(k); got != want {
			t.Errorf("%s is wanted: %v, want %v", k, got, want)
		}
	}
	for _, a := range plan(1, 5*time.Minute, five, wanted) {
		if !wanted(a.Kind) {
			t.Errorf("the plan has %v", a)
		}
	}
	if _, err := kindsWanted("kill,frieze"); err == nil {
		t.Error(`"frieze" was taken for an action`)
	}
}
