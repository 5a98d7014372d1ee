package amqp

import "slices"

// tags are the delivery tags of one channel, 1, 2, 3 and so on. It finds out what one ack can settle.
type tags struct {
	low  uint64 // all up to it are settled
	done map[uint64]struct{}
}

// settle notes that a tag is settled by itself.
func (t *tags) settle(tag uint64) {
	if t.done == nil {
		t.done = make(map[uint64]struct{})
	}
	t.done[tag] = struct{}{}
	for {
		if _, next := t.done[t.low+1]; !next {
			return
		}
		t.low++
		delete(t.done, t.low)
	}
}

// ack notes that a batch of tags is acked, which it sorts. All up to upTo, one of them, are settled by one ack then, and the rest one by one;
// 0: there is no such.
func (t *tags) ack(batch []uint64) (upTo uint64, rest []uint64) {
	slices.Sort(batch)
	for _, tag := range batch {
		t.settle(tag)
	}
	n, found := slices.BinarySearch(batch, t.low)
	if found {
		n++
	}
	if n == 0 {
		return 0, batch
	}
	return batch[n-1], batch[n:]
}
