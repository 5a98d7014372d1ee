package postgres

import (
	"cmp"
	"slices"
	"time"
)

// lease is the right to deliver the messages of one bucket.
type lease struct {
	bucket int16
	epoch  int64 // counts how often the bucket was taken
}

// entry is one row in memory that nobody has now.
type entry struct {
	id         int64
	key        []byte
	uuid       string
	metadata   string
	payload    []byte
	stored     time.Time
	deliveries int       // so far
	notBefore  time.Time // zero: at once
}

func (e *entry) size() int { return len(e.metadata) + len(e.payload) }

// bucket is what a subscription knows of a bucket that it owns. It does no I/O; the subscription's goroutine
// has it alone.
type bucket struct {
	lease
	queue   []*entry // by id
	delayed int      // entries in queue that have a notBefore, at most
	held    int      // deliveries that are not settled
	leaving bool     // given back as soon as nothing is held

	// Every row with an id up to low that will ever be there was read. Ids are no cursor: a transaction can
	// commit after another one that has higher ids, see proof.
	low  int64
	seen int64 // the highest id that was read
	take int64 // rows to read at once
}

// add puts e where its id belongs.
func (b *bucket) add(e *entry) {
	if !e.notBefore.IsZero() {
		b.delayed++
	}
	b.seen = max(b.seen, e.id)
	if n := len(b.queue); n == 0 || b.queue[n-1].id < e.id {
		b.queue = append(b.queue, e)
		return
	}
	i, there := slices.BinarySearchFunc(b.queue, e, func(a, e *entry) int {
		return cmp.Or(cmp.Compare(a.id, e.id), a.stored.Compare(e.stored))
	})
	if !there {
		b.queue = slices.Insert(b.queue, i, e)
	}
}

// next takes the first entry that may go now: its time has come, and so has that of all entries of its key before
// it. Without one it tells when there will be one, if that is known.
func (b *bucket) next(now time.Time) (*entry, time.Time) {
	if b.delayed == 0 {
		if len(b.queue) == 0 {
			return nil, time.Time{}
		}
		return b.cut(0), time.Time{}
	}
	var waiting map[string]struct{} // keys
	var again time.Time
	for i, e := range b.queue {
		_, blocked := waiting[string(e.key)]
		if blocked && e.key != nil {
			continue
		}
		if now.Before(e.notBefore) {
			if again.IsZero() || e.notBefore.Before(again) {
				again = e.notBefore
			}
			if e.key != nil {
				if waiting == nil {
					waiting = make(map[string]struct{})
				}
				waiting[string(e.key)] = struct{}{}
			}
			continue
		}
		if !e.notBefore.IsZero() {
			b.delayed--
		}
		return b.cut(i), time.Time{}
	}
	return nil, again
}

func (b *bucket) cut(i int) *entry {
	e := b.queue[i]
	if i == 0 {
		b.queue[0] = nil
		b.queue = b.queue[1:]
	} else {
		b.queue = slices.Delete(b.queue, i, i+1)
	}
	return e
}
