package failures_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/integration/history"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
)

var errBroken = errors.New("the order makes no sense")

// One message in a hundred could not be handled: it stopped its partition, or was gone, or took the others with it.
func TestPoisonIsDeadLetteredAndRedrivenWithOneEffectEach(t *testing.T) {
	for _, on := range sites {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()
			testPoison(t, on.open(t), size().plain, nil)
		})
		t.Run(on.name+"Parking", func(t *testing.T) {
			t.Parallel()
			testPoison(t, on.open(t), size().parking, &parking.Policy{Poll: 50 * time.Millisecond})
		})
	}
}

func testPoison(t *testing.T, s *site, of mix, park *parking.Policy) {
	v := start(s, size().keys, func(c *runtime.ConsumerConfig) { c.Park = park })
	broken := of.broken(len(v.next))
	v.failing(func(id string) error {
		if broken[id] {
			return classify.Permanent(errBroken)
		}
		return nil
	})
	began := time.Now()
	v.publish(of.messages)
	published := time.Since(began)
	reach(t, "orders that were settled", of.messages, func() int {
		c := v.work.Stats()
		return int(c.Effects + c.DeadLettered + c.Parked)
	})
	reach(t, "dead letters in the store", of.poison, func() int { return int(v.states()[deadletter.New]) })
	settled := time.Since(began)
	parked := v.checkBeforeFix(broken, park != nil)

	v.failing(func(string) error { return nil })
	fixed := time.Now()
	report := v.redrive(len(broken))
	v.publish(len(v.next)) // one more of each key, which comes behind what is parked
	reach(t, "effects", v.sent, func() int { return int(v.work.Stats().Effects) })
	redriven := time.Since(fixed)
	v.quit()

	t.Logf("%d orders published in %v, settled after %v: %d dead-lettered, %d parked; redrive: %d, %d of them by release, all had their effect after %v",
		of.messages, published.Round(time.Millisecond), settled.Round(time.Millisecond), of.poison, parked,
		report.Redriven, report.Released, redriven.Round(time.Millisecond))
	if got, want := v.states(), map[deadletter.State]int64{deadletter.Redriven: int64(of.poison)}; !maps.Equal(got, want) {
		t.Errorf("the letters' states are %v, want %v", got, want)
	}
	if park != nil {
		broken = nil // even they were in their turn
		if left, err := s.parking.Count(t.Context(), v.consumer); err != nil || left.Messages != 0 || left.Keys != 0 {
			t.Errorf("parked: %+v, %v; want nothing", left, err)
		}
	}
	v.once(broken)
	v.judge()
}

// broken are the orders that cannot be handled: every hundredth, each of another key, at the beginning of some and at
// the end of others.
func (m mix) broken(keys int) map[string]bool {
	ids := map[string]bool{}
	for i := range m.poison {
		n := i*(m.messages/m.poison) + 37
		ids[orderID(n%keys, n/keys+1)] = true
	}
	return ids
}

// checkBeforeFix checks that the broken orders are dead letters, nothing else is, and nothing but what follows them
// in their keys waits. It returns how many are parked.
func (v *service) checkBeforeFix(broken map[string]bool, parks bool) int {
	v.t.Helper()
	want, from := map[string]bool{}, map[string]string{} // from: by key, the first order that waits
	if parks {
		for id := range broken {
			from[keyOf(id)] = id
		}
	}
	for key, n := range v.next {
		for seq := 1; seq <= n; seq++ {
			id := orderID(key, seq)
			first, waits := from[keyOf(id)]
			if !broken[id] && (!waits || id < first) {
				want[id] = true
			}
		}
	}
	got := map[string]bool{}
	for _, id := range v.effects() {
		got[id] = true
	}
	if !maps.Equal(got, want) {
		v.t.Errorf("before the fix %d orders had their effect, want %d: all that are not broken or parked", len(got), len(want))
	}
	if letters := v.lettersByID(); !maps.Equal(letters, broken) {
		v.t.Errorf("%d orders are dead letters, want %d: those that are broken", len(letters), len(broken))
	}
	if !parks {
		return 0
	}
	count, err := v.parking.Count(v.t.Context(), v.consumer)
	if waiting := v.sent - len(want); err != nil || count.Messages != waiting || count.Keys != len(broken) {
		v.t.Errorf("parked: %+v, %v; want %d messages of %d keys", count, err, waiting, len(broken))
	}
	return count.Messages
}

// lettersByID are the orders that have a dead letter.
func (v *service) lettersByID() map[string]bool {
	v.t.Helper()
	ids, from := map[string]bool{}, deadletter.Cursor{}
	for {
		page, next, err := v.letters.List(v.t.Context(), deadletter.Filter{}, false, from, deadletter.MaxLimit)
		if err != nil {
			v.t.Fatal(err)
		}
		for _, l := range page {
			ids[strings.TrimPrefix(l.MessageID, "ce:/shop ")] = true
		}
		if len(page) < deadletter.MaxLimit {
			return ids
		}
		from = next
	}
}

func (v *service) states() map[deadletter.State]int64 {
	v.t.Helper()
	states, err := v.letters.Count(v.t.Context(), deadletter.Filter{})
	if err != nil {
		v.t.Fatal(err)
	}
	return states
}

// redrive sends all dead letters back, as an operator does. There are want of them.
func (v *service) redrive(want int) deadletter.RedriveReport {
	v.t.Helper()
	const actor, reason = "ada", "fixed in release 7"
	for id := range v.lettersByID() {
		if !v.parks {
			v.note(history.Record{Kind: history.Redrive, ID: id, Key: keyOf(id)})
		}
	}
	config := deadletter.RedriveConfig{
		Source: v.letters, Publisher: v.pub, MaxHeaderBytes: v.broker.Capabilities().MaxHeaderBytes, Actor: actor, Reason: reason,
	}
	if v.parks {
		config.Parked = func(ctx context.Context, r poison.Record) (bool, error) {
			return parking.Redrive(ctx, v.parking, r, parking.Reason{Actor: actor, Reason: reason})
		}
	}
	redriver, err := deadletter.NewRedriver(config)
	if err != nil {
		v.t.Fatal(err)
	}
	report, err := redriver.Run(v.t.Context(), deadletter.Filter{Consumer: v.consumer})
	if err != nil || report.Redriven != want || len(report.Unsent) > 0 || v.parks && report.Released != want {
		v.t.Errorf("redrive: %+v, %v; want %d", report, err, want)
	}
	return report
}
