package kafka_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// lateRound stops the group between the loss of its partitions and what franz-go does about it, until a round of polling has taken
// the record at offset; and that round until release.
type lateRound struct {
	offset               int64
	armed                atomic.Bool
	stopped, tookIt      sync.Once
	lost, taken, release chan struct{}
	ended                <-chan struct{}

	mu    sync.Mutex
	round context.Context
}

func (l *lateRound) OnGroupManageError(error) {
	if !l.armed.Load() {
		return
	}
	l.stopped.Do(func() {
		close(l.lost)
		l.await(l.taken)
	})
}

func (l *lateRound) OnPollStart(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.round = ctx
}

func (l *lateRound) OnFetchRecordUnbuffered(r *kgo.Record, polled bool) {
	if polled && r.Offset == l.offset {
		l.tookIt.Do(func() {
			close(l.taken)
			l.await(l.release)
		})
	}
}

func (l *lateRound) await(c <-chan struct{}) {
	select {
	case <-c:
	case <-l.ended:
	}
}

// hurried reports whether somebody waits for the round.
func (l *lateRound) hurried() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.round.Err() != nil
}

// The member is expelled with 0 to 9 un-acked. After it was told of the loss, and before franz-go throws away what it has fetched, a round of
// polling takes 10 and is late with it. It reached the next assignment, whose tracker began at 10: a commit of 11 hid 0 to 9.
func TestLateRoundDoesNotReachTheNextAssignment(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fill(t, seeds, "topic", 0, 10, key)
	late := &lateRound{
		offset: 10, lost: make(chan struct{}), taken: make(chan struct{}), release: make(chan struct{}), ended: t.Context().Done(),
	}
	config := quick(seeds)
	config.Options = append(config.Options, kgo.WithHooks(late))
	b := open(t, config)
	r := read(t, b, "topic", 32)
	held := r.take(10)
	late.armed.Store(true)
	expel(t, seeds)
	for _, c := range []<-chan struct{}{held[0].Context().Done(), late.lost} {
		select {
		case <-c:
		case <-time.After(15 * time.Second):
			t.Fatal("the member was not told of its loss in 15 s")
		}
	}
	for _, m := range held {
		m.Nack()
	}
	fill(t, seeds, "topic", 0, 1, key)
	select {
	case <-late.taken:
	case <-time.After(15 * time.Second):
		t.Fatal("what was fetched after the loss was not polled in 15 s")
	}
	eventually(t, "the partition is assigned again, or about to be", 15*time.Second, func() bool {
		return len(b.Stats()) == 1 || late.hurried()
	})
	close(late.release)
	for want := range int64(11) {
		if m := r.next(); at(m).Offset != want {
			t.Fatalf("offset %d came, want %d: nobody has handled it", at(m).Offset, want)
		}
	}
}
