package ledger

import (
	"context"
	"errors"
	"sync"
	"time"
)

// maxOwed bounds the removals that are kept while the store is away. What is forgotten beyond it can make a message
// that is done a suspect, which is cleared when it comes again.
const maxOwed = 4096

// errOff is the answer of the books while the ledger is off.
var errOff = errors.New("the ledger is off")

// books write what begins and what is done, in order, many in one transaction. One goroutine writes; those who
// begin wait for it.
type books struct {
	store   Store
	run     Run
	timeout time.Duration
	failed  func(error) // told of each call of the store that failed

	mu     sync.Mutex
	off    bool
	queue  []*entry    // in order
	active map[Key]int // copies of a message that run at once
	wake   chan struct{}
}

type entryKind int

const (
	begin entryKind = iota
	done
	alone
	clears
)

// entry is one thing to write.
type entry struct {
	kind  entryKind
	key   Key
	force bool

	written chan struct{} // closed when all below is set; nil if nobody waits
	suspect Suspect
	err     error
}

func newBooks(c Config, run Run, failed func(error)) *books {
	return &books{
		store: c.Store, run: run, timeout: c.StoreTimeout, failed: failed,
		active: map[Key]int{}, wake: make(chan struct{}, 1),
	}
}

// begin commits a start of key, unless it is a suspect or elsewhere: then it returns that.
func (b *books) begin(key Key) (Suspect, error) {
	e := &entry{kind: begin, key: key, written: make(chan struct{})}
	b.mu.Lock()
	if b.off {
		b.mu.Unlock()
		return Suspect{}, errOff
	}
	b.active[key]++
	b.push(e)
	b.mu.Unlock()
	<-e.written
	if e.err != nil || e.suspect.known() {
		b.done(key) // after an error it may have been written
	}
	return e.suspect, e.err
}

// done removes a start of key soon. It does not wait.
func (b *books) done(key Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.active[key]--; b.active[key] > 0 {
		return
	}
	delete(b.active, key)
	b.push(&entry{kind: done, key: key})
}

// alone commits a start of key that is alone, unless it is convicted. See Store.Alone.
func (b *books) alone(key Key, force bool) (Suspect, error) {
	e := &entry{kind: alone, key: key, force: force, written: make(chan struct{})}
	b.mu.Lock()
	if b.off {
		b.mu.Unlock()
		return Suspect{}, errOff
	}
	b.push(e)
	b.mu.Unlock()
	<-e.written
	return e.suspect, e.err
}

// survived removes the start of key that was alone and, if it succeeded, every suspicion of it, and waits until that
// is durable: what dies next must not be its death. If the store is away it is done when it is back.
func (b *books) survived(key Key, succeeded bool) {
	e := &entry{kind: done, key: key, written: make(chan struct{})}
	if succeeded {
		e.kind = clears
	}
	b.mu.Lock()
	b.push(e)
	off := b.off
	b.mu.Unlock()
	if !off {
		<-e.written
	}
}

// clear removes every suspicion of key soon. It does not wait.
func (b *books) clear(key Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.push(&entry{kind: clears, key: key})
}

// push adds e. While the ledger is off nobody waits for it. The caller holds mu.
func (b *books) push(e *entry) {
	if b.off && len(b.queue) >= maxOwed {
		return
	}
	b.queue = append(b.queue, e)
	if !b.off {
		b.wakeUp()
	}
}

func (b *books) wakeUp() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// setOff stops the writing, or starts it again with what is owed.
func (b *books) setOff(off bool) {
	b.mu.Lock()
	b.off = off
	b.mu.Unlock()
	b.wakeUp()
}

// write writes until stop is closed, and then what is left. Nothing is written after that.
func (b *books) write(stop <-chan struct{}) {
	for {
		select {
		case <-b.wake:
			b.flush()
		case <-stop:
			b.flush()
			b.setOff(true)
			b.flush()
			return
		}
	}
}

// flush writes the queue. Entries that come meanwhile are the next batch.
func (b *books) flush() {
	for {
		batch := b.take()
		if len(batch) == 0 {
			return
		}
		err := b.writeBatch(batch)
		if err != nil {
			b.failed(err)
			b.keep(batch)
		}
		for _, e := range batch {
			if e.err == nil {
				e.err = err
			}
			if e.written != nil {
				close(e.written)
			}
		}
		if err != nil {
			return
		}
	}
}

// take takes the next entries that one call of the store can write: a run of begins and dones, or one other.
// While the ledger is off it fails those that wait and leaves the rest.
func (b *books) take() []*entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.off {
		b.refuse()
		return nil
	}
	n := 0
	seen := map[Key]entryKind{}
	for n < len(b.queue) && n < MaxRecord {
		e := b.queue[n]
		if e.kind == alone || e.kind == clears {
			if n == 0 {
				n = 1
			}
			break
		}
		// Record removes before it adds. So a key that has begun and is then done needs a batch of its own for that.
		if before, ok := seen[e.key]; ok && before == begin && e.kind == done {
			break
		}
		seen[e.key] = e.kind
		n++
	}
	batch := b.queue[:n:n]
	b.queue = b.queue[n:]
	if len(b.queue) == 0 {
		b.queue = nil
	}
	return batch
}

// refuse answers those who wait while the ledger is off. What they wanted removed stays owed.
func (b *books) refuse() {
	owed := b.queue[:0:0]
	for _, e := range b.queue {
		if e.kind == done || e.kind == clears {
			owed = append(owed, &entry{kind: e.kind, key: e.key})
		}
		if e.written != nil {
			e.err = errOff
			close(e.written)
		}
	}
	b.queue = owed
}

// keep puts the removals of a batch that failed back, first.
func (b *books) keep(batch []*entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var owed []*entry
	for _, e := range batch {
		if e.kind == done || e.kind == clears {
			owed = append(owed, &entry{kind: e.kind, key: e.key})
		}
	}
	b.queue = append(owed, b.queue...)
}

func (b *books) writeBatch(batch []*entry) error {
	ctx, cancel := context.WithTimeout(context.Background(), b.timeout)
	defer cancel()
	first := batch[0]
	switch first.kind {
	case alone:
		suspect, err := b.store.Alone(ctx, b.run, first.key, first.force)
		first.suspect = suspect
		return err
	case clears:
		return b.store.Clear(ctx, b.run, first.key)
	default: // begins and dones
		return b.writeStarts(ctx, batch)
	}
}

func (b *books) writeStarts(ctx context.Context, batch []*entry) error {
	var removed, begun []Key
	for _, e := range batch {
		if e.kind == begin {
			begun = append(begun, e.key)
		} else {
			removed = append(removed, e.key)
		}
	}
	suspects, err := b.store.Record(ctx, b.run, unique(removed), unique(begun))
	if err != nil {
		return err
	}
	for _, s := range suspects {
		for _, e := range batch {
			if e.kind == begin && e.key == s.Key {
				e.suspect = s
			}
		}
	}
	return nil
}

func unique(keys []Key) []Key {
	seen := make(map[Key]bool, len(keys))
	list := keys[:0]
	for _, k := range keys {
		if !seen[k] {
			seen[k] = true
			list = append(list, k)
		}
	}
	return list
}
