package outbox_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/outbox"
)

// looking is a source that notes when it was asked for topics.
type looking struct {
	*outboxsuite.Memory
	mu sync.Mutex
	at []time.Time
}

func (l *looking) Topics(ctx context.Context, after string, limit int) ([]outbox.Topic, error) {
	l.mu.Lock()
	l.at = append(l.at, time.Now())
	l.mu.Unlock()
	return l.Memory.Topics(ctx, after, limit)
}

// since returns the time from then to the first look after it, and the times between those that follow.
func (l *looking) since(then time.Time) (gaps []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range l.at {
		if !at.Before(then) {
			gaps = append(gaps, at.Sub(then))
			then = at
		}
	}
	return gaps
}

func TestPollAdaptsToWhatIsFound(t *testing.T) {
	const ms = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		m, b := &looking{Memory: outboxsuite.NewMemory()}, &broker{}
		x := run(t, m, b, outbox.RelayConfig{PollMin: 25 * ms, PollMax: time.Second})
		pass(30 * time.Second)
		idle := time.Now()
		pass(time.Minute)
		if gaps := m.since(idle)[1:]; len(gaps) != 59 || slices.Min(gaps) != time.Second || slices.Max(gaps) != time.Second {
			t.Errorf("in an idle minute: %d looks, %v; want one each second", len(gaps)+1, gaps)
		}

		add(t, m.Memory, "t", "k", "1")
		pass(4 * time.Second)
		found := b.at["1"]
		want := []time.Duration{0, 25 * ms, 50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, time.Second}
		if gaps := m.since(found); len(gaps) < len(want) || !slices.Equal(gaps[:len(want)], want) {
			t.Errorf("after a row was found: looks after %v, want %v", gaps, want)
		}

		pass(30 * time.Second)
		pass(300 * ms)
		woken := time.Now()
		x.Wake()
		pass(4 * time.Second)
		want = []time.Duration{0, 50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, time.Second}
		if gaps := m.since(woken); len(gaps) < len(want) || !slices.Equal(gaps[:len(want)], want) {
			t.Errorf("after Wake: looks after %v, want %v", gaps, want)
		}
		x.mustStop(t)
	})
}

// More topics than get turns at once had a backlog. Each turn that ended put the next look off, so a topic that was new had to
// wait until all of it was published.
func TestBacklogDoesNotPutOffTheNextLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxsuite.NewMemory()
		b := &broker{before: func(string, []*message.Message) error { time.Sleep(2 * time.Millisecond); return nil }}
		for _, topic := range []string{"a", "b", "c"} {
			add(t, m, topic, "k", names(topic, 5_000)...)
		}
		x := run(t, m, b, outbox.RelayConfig{Topics: 1, Page: 5, Batch: 5})
		pass(time.Second)
		began := time.Now()
		add(t, m, "new", "k", "new")
		pass(30 * time.Second)
		if took := b.at["new"].Sub(began); took > 200*time.Millisecond {
			t.Errorf("the new topic's row was published after %v, want within a few turns of the others", took)
		}
		if last := slices.MaxFunc([]time.Time{b.at["a4999"], b.at["b4999"], b.at["c4999"]}, time.Time.Compare).Sub(began); last < 2*time.Second {
			t.Errorf("the backlog was gone after %v: the test shows nothing", last)
		}
		x.mustStop(t)
	})
}
