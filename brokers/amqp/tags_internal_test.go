package amqp

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The server is simulated: an ack of several settles all un-acked ones up to its tag, which must be one of them.
func TestOneAckSettlesWhatItShouldAndNothingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 40
		unacked, held := map[uint64]bool{}, []uint64{}
		for tag := uint64(1); tag <= n; tag++ {
			unacked[tag] = true
			held = append(held, tag)
		}
		var tags tags
		one := func(tag uint64) {
			if !unacked[tag] {
				t.Fatalf("tag %d is settled twice", tag)
			}
			delete(unacked, tag)
		}
		for len(held) > 0 {
			k := rapid.IntRange(1, min(5, len(held))).Draw(t, "size")
			var batch []uint64
			for range k {
				i := rapid.IntRange(0, min(len(held)-1, 7)).Draw(t, "which")
				batch = append(batch, held[i])
				held = slices.Delete(held, i, i+1)
			}
			if rapid.Bool().Draw(t, "requeue") {
				for _, tag := range batch {
					one(tag)
					tags.settle(tag)
				}
				continue
			}
			upTo, rest := tags.ack(slices.Clone(batch))
			if upTo > 0 {
				one(upTo)
				for tag := range unacked {
					if tag < upTo {
						delete(unacked, tag)
					}
				}
			}
			for _, tag := range rest {
				one(tag)
			}
			for _, tag := range held {
				if !unacked[tag] {
					t.Fatalf("batch %v: an ack up to %d settled tag %d, which is held", batch, upTo, tag)
				}
			}
			if len(unacked) != len(held) {
				t.Fatalf("batch %v: %d are un-acked, want the %d that are held", batch, len(unacked), len(held))
			}
		}
		if tags.low != n || len(tags.done) != 0 {
			t.Fatalf("at the end: low is %d, %d beyond; want %d and none", tags.low, len(tags.done), n)
		}
	})
}

func TestContiguousTagsTakeOneAck(t *testing.T) {
	var tags tags
	for _, tt := range []struct {
		batch []uint64
		upTo  uint64
		rest  []uint64
	}{
		{[]uint64{2, 1}, 2, nil},
		{[]uint64{5, 4}, 0, []uint64{4, 5}},
		{[]uint64{7, 3}, 3, []uint64{7}}, // 4 and 5 are acked by themselves: 3 is the last of the batch
		{[]uint64{6, 8, 10}, 8, []uint64{10}},
	} {
		if upTo, rest := tags.ack(tt.batch); upTo != tt.upTo || !slices.Equal(rest, tt.rest) {
			t.Errorf("ack(%v): up to %d and %v, want up to %d and %v", tt.batch, upTo, rest, tt.upTo, tt.rest)
		}
	}
}
