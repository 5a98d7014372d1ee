package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// stopGrace is how long the drains get to return once the drain limit has passed and their contexts have
// ended.
const stopGrace = time.Second

// topicsAtOnce bounds one look for topics; the next look goes on behind it.
const topicsAtOnce = 500

// unknown is the difference of the clocks before the database has told its time.
const unknown = time.Duration(math.MinInt64)

// promoteAtOnce bounds one move of delayed rows.
const promoteAtOnce = 1_000

// Relay publishes the rows of an outbox.
//
// Any number of relays may run on one database, in any processes: they share the buckets, and when one
// dies the others take its buckets after the LeaseTTL. Within a relay each topic is published by itself:
// a topic that fails or is slow holds no other one. Within a topic, pages of rows are read, published and deleted
// side by side, each key's rows in order; a key whose row cannot be published waits while the other keys go on.
//
// A row that can never be published (the publisher's error is classified as Poison or Drop) goes to the
// dead rows, but no more than 100 of a topic in a row: a broker that refuses everything is taken to be
// out of order. Any other failure is repeated for ever with a growing wait; nothing is given up because
// of an outage.
type Relay struct {
	src     Source
	pub     message.Publisher
	cfg     RelayConfig
	wake    chan struct{}
	running atomic.Bool
	tenancy tenancy
	stats   stats
	queued  atomic.Int32 // topics that wait for a turn
	ahead   atomic.Int64 // the database's clock minus ours
}

// NewRelay checks cfg; its error names each wrong field. The relay does nothing before Run.
//
// pub must return from Publish only when the broker has confirmed all messages, and keep the order of
// messages of one key within and between calls. The relay calls it from several goroutines at once, for
// different topics and, up to RelayConfig.InFlight, for different keys of one topic. The caller closes pub after
// Run has returned.
func NewRelay(src Source, pub message.Publisher, cfg RelayConfig) (*Relay, error) {
	if src == nil {
		return nil, errors.New("outbox: NewRelay: source is nil")
	}
	if pub == nil {
		return nil, errors.New("outbox: NewRelay: publisher is nil")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Relay{src: src, pub: pub, cfg: cfg, wake: make(chan struct{}, 1), stats: stats{failing: map[string]Failing{}}}
	r.ahead.Store(int64(unknown))
	return r, nil
}

// Wake tells the relay that rows were committed. It never blocks, and many calls cost no more than one
// look into the table. It is a hint: rows are found without it, after PollMax at the latest.
//
// When other relays may hold the rows' buckets, the hint goes to RelayConfig.Signal as well.
func (r *Relay) Wake() {
	r.hint()
	if r.cfg.Signal == nil {
		return
	}
	if buckets, _ := r.tenancy.counts(time.Now()); buckets < Buckets {
		r.cfg.Signal.Wake()
	}
}

// hint wakes this relay.
func (r *Relay) hint() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run publishes until ctx ends, then publishes in one last pass what was committed until then, finishes what is in
// flight, gives its buckets to other relays and returns nil. The last pass repeats no failure, does not wait for the
// broker or the database, and begins nothing in the second half of the DrainLimit; what is left then, in a long backlog
// say, stays for other relays and the next start.
//
// It returns an error when the publisher's error is classified as Stop, when it is called
// while it runs, and when a Publish did not return within the DrainLimit: that error names the topics,
// and a goroutine is left behind that waits for the publisher. A database or broker that cannot be
// reached is not an error: Run waits for it.
func (r *Relay) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("outbox: relay runs already")
	}
	defer r.running.Store(false)

	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	defer endWork()
	var background sync.WaitGroup
	stopped := make(chan struct{}) // closed when the drains have ended: the leases are kept until then
	leased := make(chan struct{}, 1)
	background.Go(func() { r.lease(work, stopped, leased) })
	turns, endTurns := context.WithCancel(work) // as long as publishes may begin
	defer endTurns()
	ctx, stop := context.WithCancel(ctx) // also when a publisher says so
	defer stop()
	background.Go(func() { r.housekeep(ctx) })
	if r.cfg.Signal != nil {
		background.Go(func() {
			if err := r.cfg.Signal.Run(ctx, r.hint); err != nil {
				r.databaseError(ctx, fmt.Errorf("signal; rows are found by the poll: %w", err))
			}
		})
	}

	m := &mainLoop{Relay: r, turns: turns, work: work, topics: map[string]*topic{}, done: make(chan result, r.cfg.Topics), leased: leased}
	err := m.run(ctx)
	stop()
	limit := time.NewTimer(r.cfg.DrainLimit)
	defer limit.Stop()
	if err == nil {
		err = m.last(endTurns)
	}
	endTurns()
	hung := m.finish(limit, endWork)
	close(stopped)
	endWork()
	background.Wait()
	if len(hung) > 0 {
		// Its leases must run out by themselves: the publisher may go on.
		return errors.Join(err, fmt.Errorf("outbox: drain limit %v passed and Publish has not returned for topics %s", r.cfg.DrainLimit, strings.Join(hung, ", ")))
	}
	if lerr := r.call(context.WithoutCancel(ctx), func(ctx context.Context) error { return r.src.Leave(ctx, r.cfg.Owner) }); lerr != nil {
		// Not a failure of Run: the leases run out.
		r.databaseError(ctx, fmt.Errorf("give back the leases: %w", lerr))
	}
	r.tenancy.renewed(Tenure{}, time.Time{})
	return err
}

// call makes one bounded call of the database.
func (r *Relay) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.DatabaseTimeout)
	defer cancel()
	return f(ctx)
}

// lease keeps the leases until stopped is closed. It signals on leased when there are new ones.
func (r *Relay) lease(work context.Context, stopped <-chan struct{}, leased chan<- struct{}) {
	for {
		before, _ := r.tenancy.counts(time.Now())
		began := time.Now()
		var tenure Tenure
		// Not cut off by the end: the database might make the leases after Leave, and nobody would have them until
		// they run out.
		err := r.call(context.WithoutCancel(work), func(ctx context.Context) (err error) {
			tenure, err = r.src.Lease(ctx, r.cfg.Owner, r.cfg.LeaseTTL)
			return err
		})
		wait := r.cfg.LeaseTTL / 4
		if err != nil {
			if work.Err() == nil {
				r.databaseError(work, fmt.Errorf("lease buckets: %w", err))
			}
			wait = min(wait, r.cfg.PollMax)
		} else {
			// Counted from before the call, so that the database's expiry is not before ours.
			r.tenancy.renewed(tenure, began.Add(r.cfg.LeaseTTL))
			if !tenure.Now.IsZero() {
				now := time.Now()
				r.ahead.Store(int64(tenure.Now.Sub(now.Add(-now.Sub(began) / 2))))
			}
			if after, _ := r.tenancy.counts(time.Now()); after > before {
				select {
				case leased <- struct{}{}:
				default:
				}
			}
			r.giveBack(work)
			if r.tenancy.short() {
				wait = min(wait, r.cfg.PollMax)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-stopped:
			timer.Stop()
			return
		}
	}
}

func (r *Relay) giveBack(work context.Context) {
	leases := r.tenancy.leaving()
	if len(leases) == 0 {
		return
	}
	err := r.call(work, func(ctx context.Context) error { return r.src.Release(ctx, r.cfg.Owner, leases) })
	if err != nil && work.Err() == nil {
		// The next Lease finds them among ours, and they are given back then.
		r.databaseError(work, fmt.Errorf("release buckets: %w", err))
	}
}

// housekeep moves delayed rows whose time has come and counts what waits.
func (r *Relay) housekeep(ctx context.Context) {
	var counted time.Time
	ticker := time.NewTicker(r.cfg.PollMax)
	defer ticker.Stop()
	for {
		for moved := promoteAtOnce; moved == promoteAtOnce && ctx.Err() == nil; {
			err := r.call(ctx, func(ctx context.Context) (err error) {
				moved, err = r.src.Promote(ctx, promoteAtOnce)
				return err
			})
			if err != nil {
				moved = 0
				if ctx.Err() == nil {
					r.databaseError(ctx, fmt.Errorf("promote delayed rows: %w", err))
				}
			}
			if moved > 0 {
				r.Wake() // the rows' buckets may be others'
			}
		}
		if now := time.Now(); now.Sub(counted) >= backlogEvery {
			counted = now
			err := r.call(ctx, func(ctx context.Context) error {
				b, err := r.src.Backlog(ctx, backlogLimit)
				if err == nil {
					r.stats.mu.Lock()
					r.stats.backlog = b
					r.stats.mu.Unlock()
				}
				return err
			})
			if err != nil && ctx.Err() == nil {
				r.databaseError(ctx, fmt.Errorf("count the backlog: %w", err))
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// mainLoop finds topics with rows and gives each its turn. All of it is one goroutine's.
type mainLoop struct {
	*Relay
	turns   context.Context // of the drains: nothing new is published when it has ended
	work    context.Context
	topics  map[string]*topic
	ready   []*topic
	running int
	done    chan result // has room for all that run: a drain never waits to report
	leased  <-chan struct{}
	after   string        // where the next look for topics begins
	oldest  time.Duration // so far in this round of looks
	poll    time.Duration // between looks
	next    time.Time     // of the next look; a turn that ends brings it nearer, and never puts it off
}

// result is how a turn ended.
type result struct {
	t         *topic
	published int
	more      bool
	err       error
}

var errGoexit = errors.New("the publisher ended its goroutine with runtime.Goexit")

func (m *mainLoop) run(ctx context.Context) error {
	m.poll = m.cfg.PollMin
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.leased:
		case <-m.wake:
			m.poll = m.cfg.PollMin
		case <-timer.C:
		case res := <-m.done:
			if err := m.ended(res); err != nil {
				return err
			}
			if res.published > 0 {
				m.poll = m.cfg.PollMin
				m.next = earlier(m.next, time.Now().Add(m.poll))
			}
			if wait := m.wait(); wait > 0 {
				m.start()
				timer.Reset(wait)
				continue
			}
		}
		m.look(ctx)
		m.next = time.Now().Add(m.poll)
		m.due()
		m.start()
		timer.Reset(m.wait())
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// last publishes what was committed until now. Its second half of the drain limit is for what is in flight.
func (m *mainLoop) last(endTurns context.CancelFunc) error {
	half := time.AfterFunc(m.cfg.DrainLimit/2, endTurns)
	defer half.Stop()
	m.after = ""
	for m.look(m.turns) && m.after != "" {
	}
	m.due()
	m.start()
	for m.running > 0 {
		select {
		case res := <-m.done:
			if err := m.ended(res); err != nil {
				return err
			}
			m.start()
		case <-m.turns.Done():
			return nil
		}
	}
	return nil
}

// wait is the time to the next look, or less if a failed topic is due.
func (m *mainLoop) wait() time.Duration {
	next := m.next
	for _, t := range m.topics {
		if !t.running && !t.queued && !t.next.IsZero() {
			next = earlier(next, t.next)
		}
	}
	return max(time.Until(next), 0)
}

// look asks for topics with rows and queues those that may be published now. It reports whether there was an answer.
func (m *mainLoop) look(ctx context.Context) bool {
	var found []Topic
	err := m.call(ctx, func(ctx context.Context) (err error) {
		found, err = m.src.Topics(ctx, m.after, topicsAtOnce)
		return err
	})
	m.poll = min(2*m.poll, m.cfg.PollMax)
	if err != nil {
		if ctx.Err() == nil {
			m.databaseError(ctx, fmt.Errorf("look for topics: %w", err))
			m.poll = m.cfg.PollMax
		}
		return false
	}
	for _, f := range found {
		m.oldest = max(m.oldest, f.Age)
		m.queue(f.Name)
	}
	if len(found) == topicsAtOnce {
		m.after = found[len(found)-1].Name
		return true
	}
	m.after = ""
	m.stats.mu.Lock()
	m.stats.oldest = m.oldest
	m.stats.mu.Unlock()
	m.oldest = 0
	return true
}

// due queues the failed topics whose time has come.
func (m *mainLoop) due() {
	now := time.Now()
	for _, t := range m.topics {
		if !t.running && !t.queued && !t.next.IsZero() && !now.Before(t.next) {
			m.queue(t.name)
		}
	}
}

func (m *mainLoop) queue(name string) {
	t := m.topics[name]
	if t == nil {
		if len(m.topics) >= maxTopics && !m.forget() {
			return // all are busy or failing: it is found again when one is done
		}
		t = &topic{name: name, poke: make(chan struct{}, 1)}
		m.topics[name] = t
	}
	switch {
	case t.running:
		t.again.Store(true)
		select {
		case t.poke <- struct{}{}:
		default:
		}
	case t.queued, t.out != nil && time.Now().Before(t.out.next):
	default:
		t.queued = true
		m.ready = append(m.ready, t)
	}
}

// forget makes room by dropping topics that are idle and well.
func (m *mainLoop) forget() bool {
	n := len(m.topics)
	for name, t := range m.topics {
		if !t.running && !t.queued && t.out == nil && len(t.held) == 0 {
			delete(m.topics, name)
		}
	}
	return len(m.topics) < n
}

// start gives turns to queued topics while there is room.
func (m *mainLoop) start() {
	defer func() { m.queued.Store(int32(len(m.ready))) }()
	for len(m.ready) > 0 && m.running < m.cfg.Topics {
		t := m.ready[0]
		m.ready = slices.Delete(m.ready, 0, 1)
		t.queued, t.running = false, true
		m.running++
		go func() {
			d := &drain{Relay: m.Relay, t: t, ctx: m.turns, work: m.work}
			res := result{t: t, err: errGoexit}
			defer func() {
				res.published = d.rows
				m.done <- res
			}()
			res.more, res.err = d.run()
		}()
	}
}

// ended takes a topic back. It returns the error that stops the relay.
func (m *mainLoop) ended(res result) error {
	t := res.t
	m.running--
	t.running = false
	if res.err != nil {
		if _, ok := errors.AsType[*stopError](res.err); ok {
			return res.err
		}
		m.databaseError(m.work, res.err)
		t.next = time.Now().Add(m.cfg.PollMax)
		return nil
	}
	if soonest := time.Now().Add(m.cfg.PollMin); !t.next.IsZero() && t.next.Before(soonest) {
		t.next = soonest // it is due and could not be tried: without a lease, for one
	}
	if t.again.Swap(false) && t.out == nil || res.more {
		t.queued = true
		m.ready = append(m.ready, t)
	}
	return nil
}

// finish waits for the drains and returns the topics whose Publish does not return.
func (m *mainLoop) finish(limit *time.Timer, endWork context.CancelFunc) (hung []string) {
	for ended := false; m.running > 0; {
		select {
		case res := <-m.done:
			m.running--
			res.t.running = false
		case <-limit.C:
			if ended {
				for _, t := range m.topics {
					if t.running {
						hung = append(hung, fmt.Sprintf("%q", t.name))
					}
				}
				slices.Sort(hung)
				return hung
			}
			ended = true
			endWork()
			limit.Reset(stopGrace)
		}
	}
	return nil
}
