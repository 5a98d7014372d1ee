package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

// A naive model: of each key at most budget records are out, in order, none while one was given back or an old one runs; and what
// may go does go.
func TestLanesKeepOrderAndBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.IntRange(1, 4).Draw(t, "budget")
		l := newLanes(budget)
		type state struct {
			added, out        int // numbers of the next record to add, and to come out
			held, back, olden int
		}
		const keys = 4 // 0 is keyless
		var model [keys]state
		var ready [keys]int // after the last action
		offset := int64(0)
		keyOfOffset := make(map[int64]struct{ key, n int })
		pick := func(t *rapid.T, ok func(state) bool) int {
			var can []int
			for k, s := range model {
				if ok(s) {
					can = append(can, k)
				}
			}
			if len(can) == 0 {
				t.Skip()
			}
			return rapid.SampledFrom(can).Draw(t, "key")
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				k := rapid.IntRange(0, keys-1).Draw(t, "key")
				keyOfOffset[offset] = struct{ key, n int }{k, model[k].added}
				model[k].added++
				l.add(&kgo.Record{Offset: offset}, uint64(k))
				offset++
			},
			"next": func(t *rapid.T) {
				e, ok := l.next()
				if !ok {
					t.Skip()
				}
				got := keyOfOffset[e.record.Offset]
				s := &model[got.key]
				if got.n != s.out || uint64(got.key) != e.lane.key {
					t.Fatalf("record %d of key %d came out, want %d", got.n, got.key, s.out)
				}
				s.out++
				s.held++
			},
			"ack": func(t *rapid.T) {
				k := pick(t, func(s state) bool { return s.held > s.back })
				model[k].held--
				l.acked(l.byKey[uint64(k)])
			},
			"give back": func(t *rapid.T) {
				k := pick(t, func(s state) bool { return s.held > s.back })
				model[k].back++
				l.gaveBack(l.byKey[uint64(k)])
			},
			"go again": func(t *rapid.T) {
				k := pick(t, func(s state) bool { return s.back > 0 })
				model[k].back--
				l.goesAgain(l.byKey[uint64(k)])
			},
			"old": func(t *rapid.T) {
				k := rapid.IntRange(0, keys-1).Draw(t, "key")
				model[k].olden++
				l.addOld(uint64(k))
			},
			"old ended": func(t *rapid.T) {
				k := pick(t, func(s state) bool { return s.olden > 0 })
				model[k].olden--
				l.oldEnded(uint64(k))
			},
			"": func(t *rapid.T) {
				before := ready
				ready = [keys]int{}
				for i := l.ready.first; i < len(l.ready.items); i++ {
					ready[l.ready.items[i].lane.key]++
				}
				waiting := 0
				for k, s := range model {
					r := ready[k]
					if r > before[k] && (s.back > 0 || s.olden > 0) {
						t.Fatalf("key %d: %d records are ready, before %d, and one was given back or an old one runs: %+v", k, r, before[k], s)
					}
					if k != keyless && s.held+r > budget {
						t.Fatalf("key %d has %d out and %d ready, want at most %d", k, s.held, r, budget)
					}
					left := s.added - s.out - r
					waiting += left
					free := s.back == 0 && s.olden == 0 && (k == keyless || s.held+r < budget)
					if left > 0 && free {
						t.Fatalf("key %d: %d records wait, and may go: %+v", k, left, s)
					}
				}
				if waiting != l.waiting {
					t.Fatalf("waiting is %d, want %d", l.waiting, waiting)
				}
			},
		})
	})
}
