package kafka

import (
	"hash/crc32"
	"slices"
	"strconv"
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
		checkSparse(t, base, limit, want)
	})
}

// checkSparse: what is written of a commit of base is read back, but for what did not fit; nothing else is taken for complete.
func checkSparse(t interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}, base int64, limit int, want []ordering.Position,
) {
	t.Helper()
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
}

// FuzzSparse is the test above with positions that are made of bytes: the lowest bit is a new epoch, the others are the gap.
func FuzzSparse(f *testing.F) {
	f.Add(int64(0), int32(0), uint16(maxMetadata), []byte{0, 0, 2, 3, 254})
	f.Add(int64(1)<<40, int32(-1), uint16(20), []byte{1})
	f.Add(int64(1000), int32(7), uint16(30), []byte{0, 4, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5})
	f.Add(int64(35), int32(1<<30), uint16(0), []byte(nil))
	f.Fuzz(func(t *testing.T, base int64, epoch int32, limit uint16, steps []byte) {
		if base < 0 || base > 1<<50 || epoch < -1 || epoch > 1<<30 || len(steps) > 5000 {
			return // the broker has no such offsets and epochs
		}
		want := make([]ordering.Position, len(steps))
		offset := base
		for i, s := range steps {
			offset += int64(s >> 1)
			epoch += int32(s & 1)
			want[i] = ordering.Position{Offset: offset, Epoch: epoch}
			offset++
		}
		checkSparse(t, base, min(int(limit), maxMetadata), want)
	})
}

func FuzzDecodeSparse(f *testing.F) {
	good, _ := runsOf([]ordering.Position{{Offset: 12, Epoch: 3}, {Offset: 13, Epoch: 3}, {Offset: 20, Epoch: 4}}).encode(10, maxMetadata)
	for _, s := range []string{good, "", "hr1", "hr1 a 2+2@3 0", "memberID-123", strings.Repeat("x", 5000), "hr1 a 2+zzzzzzzzzzzz@3,1 1j2k"} {
		f.Add(s, int64(10))
	}
	for _, body := range []string{"hr1 a 2+2@3,0", "hr1 a 2@3,0@3,+1", "hr1 a 0+1@-1", "hr1 0a 00+01@+3", "hr1 a 1@1,zzzzzzzzzzzz"} {
		f.Add(body, int64(10)) // it gets its checksum below
	}
	f.Fuzz(func(t *testing.T, text string, base int64) {
		sum := strconv.FormatUint(uint64(crc32.Checksum([]byte(text), castagnoli)), 36)
		for _, text := range []string{text, text + " " + sum} {
			checkDecoded(t, text, base)
		}
	})
}

// checkDecoded: text that is taken is ascending runs, and these are read from what is written of them.
func checkDecoded(t *testing.T, text string, base int64) {
	t.Helper()
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
	again, fits := s.encode(base, maxMetadata)
	if !fits {
		if len(text) <= maxMetadata-checkLength { // ours is the shortest form
			t.Fatalf("%q is read and does not fit when it is written", text)
		}
		return
	}
	if second, err := decodeSparse(again, base); err != nil || !slices.Equal(second, s) {
		t.Fatalf("%q is read as %v, written as %q and read as %v, %v", text, s, again, second, err)
	}
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
