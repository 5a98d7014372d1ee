package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/outbox"
)

// process is where a relay runs: it can be frozen and killed. It wraps the relay's source and publisher.
type process struct {
	outbox.Source
	world *world
	relay *running
	dead  atomic.Bool
	mu    sync.Mutex
	gate  chan struct{} // nil: not frozen
}

var errKilled = errors.New("killed")

// step is passed at each call to the world outside.
func (p *process) step() error {
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if p.dead.Load() {
		return errKilled
	}
	if p.world.databaseAway.Load() {
		return errors.New("database is away")
	}
	return nil
}

func (p *process) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate == nil {
		p.gate = make(chan struct{})
	}
}

func (p *process) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate != nil {
		close(p.gate)
		p.gate = nil
	}
}

func (p *process) Lease(ctx context.Context, owner string, ttl time.Duration) (outbox.Tenure, error) {
	if err := p.step(); err != nil {
		return outbox.Tenure{}, err
	}
	return p.Source.Lease(ctx, owner, ttl)
}

func (p *process) Leave(ctx context.Context, owner string) error {
	if err := p.step(); err != nil {
		return err
	}
	return p.Source.Leave(ctx, owner)
}

func (p *process) Fetch(ctx context.Context, q outbox.Query) (outbox.Page, error) {
	if err := p.step(); err != nil {
		return outbox.Page{}, err
	}
	return p.Source.Fetch(ctx, q)
}

func (p *process) Delete(ctx context.Context, owner, topic string, leases []outbox.Lease, ids []int64) ([]outbox.Lease, error) {
	if err := p.step(); err != nil {
		return nil, err
	}
	lost, err := p.Source.Delete(ctx, owner, topic, leases, ids)
	if lateErr := p.step(); lateErr != nil && err == nil {
		return nil, lateErr // done, and the answer is lost
	}
	return lost, err
}

func (p *process) Publish(topic string, msgs ...*message.Message) error {
	if p.dead.Load() {
		return errKilled
	}
	time.Sleep(time.Duration(len(msgs)) * time.Millisecond)
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	if gate != nil {
		<-gate
	}
	for i, msg := range msgs {
		if p.dead.Load() || p.world.refuses(topic, msg.Metadata[event.MetaPartitionKey]) {
			return fmt.Errorf("refused after %d of %d", i, len(msgs))
		}
		p.world.publish(topic, msg)
	}
	return nil
}

func (p *process) Close() error { return nil }

// world is the database, the broker and what was written.
type world struct {
	m            *outboxsuite.Memory
	databaseAway atomic.Bool

	mu        sync.Mutex
	away      map[string]bool // topics, and topic/key
	written   map[string][]string
	published map[string][]string // topic/key -> ids by first publication
	seen      map[string]bool
	copies    int
}

func (w *world) refuses(topic, key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.away[topic] || w.away[topic+"/"+key]
}

func (w *world) publish(topic string, msg *message.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[msg.UUID] {
		w.copies++
		return
	}
	w.seen[msg.UUID] = true
	lane := topic + "/" + msg.Metadata[event.MetaPartitionKey]
	w.published[lane] = append(w.published[lane], msg.UUID)
}

// Writers, open transactions, relays that stop, die and freeze, a database and a broker that go away: nothing
// is lost and no key's first publications are out of order.
func TestModelNothingIsLostOrInverted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type step struct{ op, a, b int }
		steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
			return step{rapid.IntRange(0, 19).Draw(t, "op"), rapid.IntRange(0, 5).Draw(t, "a"), rapid.IntRange(0, 3).Draw(t, "b")}
		}), 5, 120).Draw(rt, "steps")
		var failures []string
		synctest.Test(t, func(t *testing.T) {
			w := &world{m: outboxsuite.NewMemory(), away: map[string]bool{}, written: map[string][]string{}, published: map[string][]string{}, seen: map[string]bool{}}
			open := map[string]*outboxsuite.MemoryTx{} // by lane: writers of one key wait for each other
			pending := map[string][]string{}
			var live []*process
			n := 0
			start := func() {
				n++
				p := &process{Source: w.m, world: w}
				p.relay = run(t, p, p, outbox.RelayConfig{
					Owner: fmt.Sprint("relay", n), Batch: 3, Page: 7, Topics: 2, LeaseTTL: 4 * time.Second, PublishTimeout: time.Second,
					DatabaseTimeout: 2 * time.Second, DrainLimit: 3 * time.Second, BackoffMax: 2 * time.Second,
				})
				live = append(live, p)
			}
			end := func(i int, kill bool) {
				p := live[i]
				live = slices.Delete(live, i, i+1)
				p.dead.Store(kill)
				p.thaw()
				_ = p.relay.stop(t) // an error when the leases could not be given back in time
			}
			commit := func(lane string) {
				if tx := open[lane]; tx != nil {
					if err := tx.Commit(); err != nil {
						t.Error(err)
					}
					w.written[lane] = append(w.written[lane], pending[lane]...)
					delete(open, lane)
					delete(pending, lane)
				}
			}
			for _, s := range steps {
				topic, key := fmt.Sprint("t", s.b%3), fmt.Sprint("k", s.a)
				lane := topic + "/" + key
				switch {
				case s.op < 7: // write in a transaction that stays open, after the one before
					commit(lane)
					open[lane] = w.m.Begin()
					for range s.b + 1 {
						n++
						id := fmt.Sprintf("m%05d", n)
						insert(t, w.m, open[lane], topic, key, id)
						pending[lane] = append(pending[lane], id)
					}
					if s.op < 3 {
						commit(lane)
					}
				case s.op < 10:
					commit(lane)
				case s.op == 10 && len(live) < 3:
					start()
				case s.op == 11 && len(live) > 0:
					end(s.a%len(live), true)
				case s.op == 12 && len(live) > 0:
					end(s.a%len(live), false)
				case s.op == 13 && len(live) > 0:
					live[s.a%len(live)].freeze()
				case s.op == 14 && len(live) > 0:
					live[s.a%len(live)].thaw()
				case s.op == 15:
					w.databaseAway.Store(s.a%2 == 0)
				case s.op == 16:
					w.mu.Lock()
					w.away[topic] = s.a%2 == 0
					w.mu.Unlock()
				case s.op == 17:
					w.mu.Lock()
					w.away[lane] = !w.away[lane]
					w.mu.Unlock()
				default:
					time.Sleep(time.Duration(1<<(3*s.b)) * 9 * time.Millisecond) // 9 ms to 4.6 s
				}
			}
			for lane := range open {
				commit(lane)
			}
			w.databaseAway.Store(false)
			w.mu.Lock()
			clear(w.away)
			w.mu.Unlock()
			for _, p := range live {
				p.thaw()
			}
			if len(live) == 0 {
				start()
			}
			pass(2 * time.Minute)
			for len(live) > 0 {
				end(0, false)
			}
			for lane, want := range w.written {
				if got := w.published[lane]; !slices.Equal(got, want) {
					failures = append(failures, fmt.Sprintf("%s: written %q, first published %q", lane, want, got))
				}
			}
			if b, err := w.m.Backlog(context.Background(), 1_000_000); err != nil || b != (outbox.Backlog{}) {
				failures = append(failures, fmt.Sprintf("left: %+v, %v", b, err))
			}
		})
		if len(failures) > 0 {
			rt.Fatalf("%s", strings.Join(failures, "\n"))
		}
	})
}
