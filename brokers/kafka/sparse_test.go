package kafka

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/headrace-go/headrace/ordering"
)

// positions draws ascending offsets from base on, with gaps and epochs that grow.
func positions(t *rapid.T, base int64) []ordering.Position {
	n := rapid.IntRange(0, 3000).Draw(t, "n")
	gap := rapid.IntRange(1, 50).Draw(t, "most gap")
	all := make([]ordering.Position, n)
	offset, epoch := base, int32(rapid.IntRange(-1, 5).Draw(t, "epoch"))
	for i := range all {
		if rapid.IntRange(0, 2).Draw(t, "step") == 0 {
			offset += int64(rapid.IntRange(0, gap).Draw(t, "gap"))
			epoch += int32(rapid.IntRange(0, 1).Draw(t, "new epoch"))
		}
		all[i] = ordering.Position{Offset: offset, Epoch: epoch}
		offset++
	}
	return all
}

// What is written is read back, but for what did not fit; nothing else is ever taken for complete.
func TestSparseSaysOnlyWhatIsComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.Int64Range(0, 1<<50).Draw(t, "base")
		limit := rapid.SampledFrom([]int{0, 20, 100, maxMetadata}).Draw(t, "limit")
		want := positions(t, base)
		text, fits := runsOf(want).encode(base, limit)
		if len(text) > limit {
			t.Fatalf("%d bytes, want at most %d", len(text), limit)
		}
		for i := range len(text) {
			if text[i] < ' ' || text[i] > '~' {
				t.Fatalf("byte %d of %q is not printable ASCII", i, text)
			}
		}
		var got sparse
		if text != "" {
			var err error
			if got, err = decodeSparse(text, base); err != nil {
				t.Fatalf("decode %q: %v", text, err)
			}
			if _, err := decodeSparse(text, base+1); err == nil {
				t.Fatalf("%q was read for another commit", text)
			}
		}
		left, next := 0, base
		for _, p := range want {
			for ; next < p.Offset; next++ {
				if got.has(next, p.Epoch) {
					t.Fatalf("offset %d is not complete, but %q says so", next, text)
				}
			}
			next = p.Offset + 1
			if got.has(p.Offset, p.Epoch+1) || got.has(p.Offset, p.Epoch-1) {
				t.Fatalf("offset %d of another epoch than %d is taken for complete", p.Offset, p.Epoch)
			}
			if !got.has(p.Offset, p.Epoch) {
				left++
			} else if left > 0 {
				t.Fatalf("offset %d is there and a lower one is not", p.Offset)
			}
		}
		if fits != (left == 0) {
			t.Fatalf("fits is %v, but %d of %d are left out", fits, left, len(want))
		}
		if got.has(next, 0) || got.has(base-1, 0) {
			t.Fatal("an offset outside is taken for complete")
		}
	})
}

func FuzzDecodeSparse(f *testing.F) {
	good, _ := runsOf([]ordering.Position{{Offset: 12, Epoch: 3}, {Offset: 13, Epoch: 3}, {Offset: 20, Epoch: 4}}).encode(10, maxMetadata)
	for _, s := range []string{good, "", "hr1", "hr1 a 2+2@3 0", "memberID-123", strings.Repeat("x", 5000), "hr1 a 2+zzzzzzzzzzzz@3,1 1j2k"} {
		f.Add(s, int64(10))
	}
	f.Fuzz(func(t *testing.T, text string, base int64) {
		s, err := decodeSparse(text, base)
		if err != nil {
			return
		}
		last := base
		for _, r := range s {
			if r.first < last || r.end <= r.first {
				t.Fatalf("%q gives the run %+v after offset %d", text, r, last)
			}
			last = r.end
		}
	})
}

// The text is a format that other versions read: it must not change.
func TestSparseFormatIsFrozen(t *testing.T) {
	s := runsOf([]ordering.Position{
		{Offset: 1001, Epoch: 7}, {Offset: 1003, Epoch: 7}, {Offset: 1004, Epoch: 7}, {Offset: 1040, Epoch: 40},
	})
	got, fits := s.encode(1000, maxMetadata)
	if want := "hr1 rs 1@7,1+2,z@14 1w0kcj0"; got != want || !fits {
		t.Errorf("encode gives %q, %v, want %q, true", got, fits, want)
	}
}
