package kafka

import (
	"testing"

	"pgregory.net/rapid"
)

// The slots that are held never exceed the window, and nobody waits for a slot that it may have.
func TestBudgetNeverExceedsTheWindowAndWakesAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.IntRange(1, 40).Draw(t, "window")
		b := newBudget(window)
		var shares []*share
		rings := make(map[*share]int)
		pick := func() *share { return rapid.SampledFrom(shares).Draw(t, "share") }
		t.Repeat(map[string]func(*rapid.T){
			"join": func(t *rapid.T) {
				s := &share{}
				s.ring = func() { rings[s]++ }
				b.join(s)
				shares = append(shares, s)
			},
			"leave": func(t *rapid.T) {
				if len(shares) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(shares)-1).Draw(t, "i")
				b.leave(shares[i])
				shares = append(shares[:i], shares[i+1:]...)
			},
			"acquire": func(t *rapid.T) {
				if len(shares) == 0 {
					t.Skip()
				}
				s := pick()
				granted, before := s.granted, rings[s]
				if got := b.acquire(s); granted && !got {
					t.Fatal("a slot was granted and acquire did not get it")
				} else if !got && !s.waiting {
					t.Fatal("acquire failed and nobody will ring")
				} else if got && !granted && rings[s] > before {
					delete(rings, s) // told and answered at once
				}
			},
			"release": func(t *rapid.T) {
				if len(shares) == 0 {
					t.Skip()
				}
				s := pick()
				if n := s.held; n > 0 && !(n == 1 && s.granted) {
					b.release(s, 1)
				}
			},
			"withdraw": func(t *rapid.T) {
				if len(shares) == 0 {
					t.Skip()
				}
				b.withdraw(pick())
			},
			"": func(t *rapid.T) {
				held, unused := 0, 0
				for _, s := range shares {
					if s.held < 0 {
						t.Fatalf("a share holds %d", s.held)
					}
					held += s.held
					unused += max(0, b.reserve-s.held)
					if s.waiting && b.allowed(s) {
						t.Fatalf("a share that holds %d waits while %d slots are free and %d kept", s.held, b.free, b.unused)
					}
					if s.granted && s.waiting {
						t.Fatal("a share waits and was granted")
					}
				}
				if held+b.free != window || b.free < 0 {
					t.Fatalf("%d held and %d free, want %d in all", held, b.free, window)
				}
				if unused != b.unused {
					t.Fatalf("%d slots are kept, want %d", b.unused, unused)
				}
			},
		})
	})
}

// However much one partition wants, each other one can have its part of half the window.
func TestBudgetKeepsAPartForEach(t *testing.T) {
	b := newBudget(64)
	shares := make([]*share, 4)
	for i := range shares {
		shares[i] = &share{ring: func() {}}
		b.join(shares[i])
	}
	got := make([]int, len(shares))
	for i, s := range shares {
		for b.acquire(s) {
			got[i]++
		}
	}
	for i, want := range []int{64 - 3*8, 8, 8, 8} {
		if got[i] != want {
			t.Errorf("partition %d got %d slots, want %d", i, got[i], want)
		}
	}
}
