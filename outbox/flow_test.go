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

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/outbox"
)

// counting is a source that counts the rows it gives out.
type counting struct {
	*outboxsuite.Memory
	rows, fetches atomic.Int64
	// While hold is closed, deletes wait.
	hold chan struct{}
}

func (c *counting) Fetch(ctx context.Context, q outbox.Query) (outbox.Page, error) {
	p, err := c.Memory.Fetch(ctx, q)
	c.rows.Add(int64(len(p.Rows)))
	c.fetches.Add(1)
	return p, err
}

func (c *counting) Delete(ctx context.Context, owner, topic string, leases []outbox.Lease, ids []int64) ([]outbox.Lease, error) {
	if c.hold != nil {
		<-c.hold
	}
	return c.Memory.Delete(ctx, owner, topic, leases, ids)
}

func keyOf(m *message.Message) string { return m.Metadata[event.MetaPartitionKey] }

// Batches with different keys are in flight together, as many as InFlight; of one key, one.
func TestBatchesOfATopicAreInFlightTogether(t *testing.T) {
	for _, test := range []struct{ keys, inFlight, want int }{{200, 0, 4}, {200, 7, 7}, {200, 1, 1}, {1, 4, 1}} {
		t.Run(fmt.Sprintf("%d keys, %d in flight", test.keys, test.inFlight), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := outboxsuite.NewMemory()
				for i := range 1_000 {
					add(t, m, "t", fmt.Sprint("k", i%test.keys), fmt.Sprintf("%04d", i))
				}
				var now, most int
				var mu sync.Mutex
				busy := map[string]bool{}
				b := &broker{before: func(_ string, msgs []*message.Message) error {
					mu.Lock()
					now++
					most = max(most, now)
					mine := map[string]bool{}
					for _, msg := range msgs {
						if busy[keyOf(msg)] && !mine[keyOf(msg)] {
							t.Errorf("key %s is in flight twice", keyOf(msg))
						}
						busy[keyOf(msg)], mine[keyOf(msg)] = true, true
					}
					mu.Unlock()
					time.Sleep(time.Second)
					mu.Lock()
					now--
					for key := range mine {
						delete(busy, key)
					}
					mu.Unlock()
					return nil
				}}
				x := run(t, m, b, outbox.RelayConfig{Batch: 50, InFlight: test.inFlight})
				pass(time.Minute)
				if most != test.want {
					t.Errorf("%d calls at once, want %d", most, test.want)
				}
				got := b.published()
				for k := range test.keys {
					n, last := 0, ""
					for i, msg := range b.msgs {
						if keyOf(msg) == fmt.Sprint("k", k) {
							if got[i] < last {
								t.Errorf("key k%d: %s after %s", k, got[i], last)
							}
							n, last = n+1, got[i]
						}
					}
					if n != 1_000/test.keys {
						t.Errorf("key k%d: %d rows, want %d", k, n, 1_000/test.keys)
					}
				}
				wantBacklog(t, "at the end", m, outbox.Backlog{})
				x.mustStop(t)
			})
		})
	}
}

// A delete takes long; meanwhile the next pages are read and published, and none of their rows twice.
func TestPublishGoesOnBesideADelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &counting{Memory: outboxsuite.NewMemory(), hold: make(chan struct{})}
		b := &broker{}
		add(t, m.Memory, "t", "k", names("", 1_000)...)
		x := run(t, m, b, outbox.RelayConfig{Page: 100, Batch: 20})
		pass(time.Second)
		if n := len(b.published()); n != 300 {
			t.Errorf("beside the delete: published %d rows, want three pages of 100", n)
		}
		close(m.hold)
		pass(time.Second)
		if got := b.published(); len(got) != 1_000 || !slices.IsSorted(got) {
			t.Errorf("afterwards: published %d rows, in order %t; want 1000 once each", len(got), slices.IsSorted(got))
		}
		x.mustStop(t)
	})
}

// The broker hangs, or is away, behind a backlog. What is read stays bounded.
func TestOutageReadsLittleIntoMemory(t *testing.T) {
	for name, before := range map[string]func(context.Context) error{
		"hangs":    func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"is away":  func(context.Context) error { return errAway },
		"half way": func(context.Context) error { time.Sleep(time.Second); return errAway },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &counting{Memory: outboxsuite.NewMemory()}
				b := &broker{before: func(_ string, msgs []*message.Message) error { return before(msgs[0].Context()) }}
				for k := range 40 {
					add(t, m.Memory, "t", fmt.Sprint("k", k), names(fmt.Sprint("k", k, "-"), 15)...)
				}
				x := run(t, m, b, outbox.RelayConfig{Page: 100, Batch: 20, Topics: 2})
				pass(time.Minute)
				begun, fetches := m.rows.Load(), m.fetches.Load()
				if begun > 500 {
					t.Errorf("in the first minute: %d rows were read; want five pages at most", begun)
				}
				pass(5 * time.Minute)
				if n, f := m.rows.Load()-begun, m.fetches.Load()-fetches; n > f {
					t.Errorf("in five minutes of outage: %d rows in %d reads; want one row a read", n, f)
				}
				wantBacklog(t, "in the outage", m.Memory, outbox.Backlog{Rows: 600})
				x.mustStop(t)
			})
		})
	}
}

// A publish fails in the middle of what is in flight. Its rows are tried one by one, nothing of a key overtakes, and
// nothing is published that was read behind it before it is known how it ends.
func TestFailedBatchIsNotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxsuite.NewMemory()
		var mu sync.Mutex
		failures := map[string]int{}
		b := &broker{before: func(_ string, msgs []*message.Message) error {
			time.Sleep(time.Duration(len(msgs)) * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			for _, msg := range msgs {
				if failures[msg.UUID] < 5 && strings.HasSuffix(msg.UUID, "7") {
					failures[msg.UUID]++
					return errors.New("not now")
				}
			}
			return nil
		}}
		for i := range 600 {
			add(t, m, "t", fmt.Sprint("k", i%15), fmt.Sprintf("%04d", i))
		}
		x := run(t, m, b, outbox.RelayConfig{Page: 100, Batch: 10, BackoffMin: time.Millisecond, BackoffMax: 50 * time.Millisecond})
		pass(10 * time.Minute)
		last := map[string]string{}
		for _, msg := range b.msgs {
			if k := keyOf(msg); msg.UUID <= last[k] {
				t.Errorf("key %s: %s after %s", k, msg.UUID, last[k])
			} else {
				last[k] = msg.UUID
			}
		}
		if n := len(b.published()); n != 600 {
			t.Errorf("published %d rows, want each of 600 once", n)
		}
		wantBacklog(t, "at the end", m, outbox.Backlog{})
		x.mustStop(t)
	})
}

func TestObserveTellsLatencyByTheDatabasesClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxsuite.NewMemory()
		ahead := &aheadSource{Source: m}
		var away atomic.Bool
		away.Store(true)
		b := &broker{before: func(string, []*message.Message) error {
			time.Sleep(2 * time.Second)
			if away.Load() {
				return errAway
			}
			return nil
		}}
		var mu sync.Mutex
		var got []outbox.Published
		add(t, m, "t", "k", "1")
		pass(time.Minute)
		add(t, m, "t", "k", "2")
		x := run(t, ahead, b, outbox.RelayConfig{Observe: func(p outbox.Published) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, p)
		}})
		pass(3 * time.Second)
		mu.Lock()
		if len(got) == 0 || got[0].Topic != "t" || got[0].Rows != 2 || got[0].Took != 2*time.Second || !errors.Is(got[0].Err, errAway) {
			t.Errorf("first call: got %+v; want topic t, 2 rows, 2s and the error", got)
		}
		mu.Unlock()
		away.Store(false)
		pass(time.Minute)
		mu.Lock()
		last := got[len(got)-1]
		mu.Unlock()
		// The database is an hour ahead of us, and so are the times of its rows.
		if last.Err != nil || last.Age < time.Hour+3*time.Second || last.Age > time.Hour+2*time.Minute {
			t.Errorf("last call: got %+v; want no error and an age of an hour and a minute at most", last)
		}
		if s := x.Stats(); s.Owner == "" || s.Lost != 0 {
			t.Errorf("stats: owner %q, %d leases lost; want a name and 0", s.Owner, s.Lost)
		}
		x.mustStop(t)
		if s := x.Stats(); s.Lost != 0 {
			t.Errorf("after the stop: %d leases lost, want 0: they were given back", s.Lost)
		}
	})
}

// aheadSource is a database whose clock is an hour ahead of ours, while the rows are as old as ours.
type aheadSource struct{ outbox.Source }

func (s *aheadSource) Lease(ctx context.Context, owner string, ttl time.Duration) (outbox.Tenure, error) {
	t, err := s.Source.Lease(ctx, owner, ttl)
	t.Now = t.Now.Add(time.Hour)
	return t, err
}

// mouth is a Signal that is heard by hand.
type mouth struct {
	woken atomic.Int64
	heard chan func()
}

func (m *mouth) Wake() { m.woken.Add(1) }

func (m *mouth) Run(ctx context.Context, heard func()) error {
	m.heard <- heard
	<-ctx.Done()
	return nil
}

// The hints go out while others hold buckets, and not when nobody does; those of others wake the relay.
func TestSignalCarriesHintsBetweenRelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		s := &mouth{heard: make(chan func(), 1)}
		x := run(t, m, b, outbox.RelayConfig{Owner: "a", Signal: s})
		heard := <-s.heard
		pass(time.Minute)
		x.Wake()
		if n := s.woken.Load(); n != 0 {
			t.Errorf("alone: %d hints went out, want none", n)
		}
		add(t, m, "t", "k", "1")
		began := time.Now()
		heard()
		pass(0)
		if took := b.at["1"].Sub(began); len(b.published()) != 1 || took != 0 {
			t.Errorf("after a hint: published %q after %v, want at once", b.published(), took)
		}
		if n := s.woken.Load(); n != 0 {
			t.Errorf("a hint that was heard went out again %d times", n)
		}
		second := run(t, m, b, outbox.RelayConfig{Owner: "b"})
		pass(20 * time.Second)
		x.Wake()
		if n := s.woken.Load(); n != 1 {
			t.Errorf("with another relay: %d hints went out, want 1", n)
		}
		second.mustStop(t)
		x.mustStop(t)
	})
}

// leaseless relays count what they lost.
func TestLostLeasesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		cut := &leaseless{Source: m}
		first := run(t, cut, b, outbox.RelayConfig{Owner: "first"})
		pass(time.Second)
		cut.cut.Store(true)
		pass(20 * time.Second)
		second := run(t, m, b, outbox.RelayConfig{Owner: "second"})
		pass(time.Second)
		cut.cut.Store(false)
		pass(5 * time.Second)
		if s := first.Stats(); s.Lost != outbox.Buckets {
			t.Errorf("lost %d leases, want all 64", s.Lost)
		}
		second.mustStop(t)
		first.mustStop(t)
	})
}
