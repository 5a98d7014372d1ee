package middleware

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace-go/headrace/internal/flight"
)

// Intake is what a Breaker holds back; an ordering.Intake is one. Its methods must not call the Breaker.
type Intake interface {
	// Pause lets no delivery start, until Resume is called with the same reason.
	Pause(reason string)
	Resume(reason string)
	// Allow lets the next n start all the same, as long as reason is the only one. It replaces what was
	// allowed before.
	Allow(reason string, n int)
}

// Breaker tells an outage from messages that cannot be handled, for one consumer. Give it to [RetryConfig]:
// Retry tells it what came of each attempt, and asks it before each.
//
// An error that may pass (classify's Retry and RetryAfter) says little by itself: the message may be at fault,
// or what its handling depends on. What tells is how other messages fare:
//
//   - A message whose retries are used up is given up only if another key succeeded in an attempt that began
//     after the message had first failed. Else it is held: it keeps its lane, gives up its place, and is tried
//     again from time to time. So a consumer with little traffic does not empty its topic into the dead letters. It
//     is held as well, whatever succeeds, while its error is one that no message can cause: classify.Unavailable. Such errors
//     use up no retries.
//   - When enough distinct keys have failed, for long enough, with no success in between, it opens: the intake
//     is paused, and no attempt begins. One probe at a time tests recovery, with growing pauses: a delivery
//     that is held, or, if none is (and for every fourth probe), one that the intake lets through. One that has not returned
//     after BreakerConfig.MaxProbeDelay is not waited for. After a success 2 attempts may run at once, then 4, and so on until it closes.
//   - When most messages fail for good it opens too, before the whole topic has become dead letters.
//
// A success is an effect. What ends without a run of the handler proves nothing of what the handler depends on: a duplicate, a stale
// version, a message that is ignored or dropped.
//
// A message that had to wait while it was not closed starts its retries from the beginning, and has failed first
// when it fails again. A hold ends, as every retry does, when the message's context does or the intake
// drains; its message is given back then.
//
// It cannot see which dependency an error came from: handlers of one consumer vouch for each other. Those
// whose dependencies fail independently belong into consumers of their own.
//
// Its methods are safe for concurrent use.
type Breaker struct {
	config   BreakerConfig
	intake   Intake
	onChange func(BreakerChange)

	// What the way of a message that succeeds reads without the mutex. They are written with it.
	isClosed  atomic.Bool
	isFailing atomic.Bool // failures since the last success
	clock     atomic.Uint64
	floor     atomic.Uint64

	outcomes atomic.Uint64 // messages that have an outcome

	mu         sync.Mutex
	machine    machine
	waiting    []*waiter     // the first to get a permit first
	held       int           // deliveries whose retries are used up
	wake       chan struct{} // closed when those that are held should look again
	freshUntil time.Time     // until then the probe is left to the intake
	reason     string        // of the pause; "": none
	pauses     [len(causeNames)]int64
	probes     int64
	timer      *time.Timer
	rings      time.Time // when timer rings; zero: not set
	stopped    bool
}

// waiter is an attempt that waits for a permit, or for the breaker to close.
type waiter struct {
	wake   chan struct{}
	woken  bool
	permit bool
}

// pass is the leave to make one attempt.
type pass struct {
	clock  uint64 // when it began
	permit bool   // it has to be reported, or given back
	waited bool   // it was held up
}

// NewBreaker returns a breaker of one consumer. intake may be nil: then attempts wait, but nothing holds back
// those that follow. onChange, if it is not nil, is told of each change of state, one at a time; it must be
// quick and must not call the Breaker. Close it when the consumer has ended.
func NewBreaker(c BreakerConfig, intake Intake, onChange func(BreakerChange)) (*Breaker, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	b := &Breaker{config: c.withDefaults(), intake: intake, onChange: onChange, wake: make(chan struct{})}
	b.machine = newMachine(b.config, rand.Float64)
	b.isClosed.Store(true)
	return b, nil
}

// Close ends the probes. What waits for one goes on waiting for its context or the drain.
func (b *Breaker) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	if b.timer != nil {
		b.timer.Stop()
	}
}

// ForceClose closes the breaker at once: the intake goes on, and everything that waits is tried. It opens again
// if what made it open goes on. For an operator who knows better.
func (b *Breaker) ForceClose() {
	b.change(func(m *machine, _ time.Time) {
		if m.state != BreakerClosed {
			m.close(b.outcomes.Load())
		}
		b.rouseHeld()
	})
}

// AllowDeadLetters lets messages become dead letters, for as long as d, that it would hold back: those
// whose retries are used up, though nothing else succeeds, and any number that fail for good. If it is open because
// too many did, it closes. A later call replaces the time of an earlier one; 0 ends it.
func (b *Breaker) AllowDeadLetters(d time.Duration) {
	b.change(func(m *machine, now time.Time) {
		m.allowedUntil = now.Add(d)
		if m.state != BreakerClosed && m.cause == CauseDeadLetters && d > 0 {
			m.close(b.outcomes.Load())
		}
		b.rouseHeld()
	})
}

// change lets f change the machine, and does what follows from it.
func (b *Breaker) change(f func(m *machine, now time.Time)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	before := b.machine.state
	f(&b.machine, now)
	b.follow(before, now)
}

// off tells that nothing is to be asked or told.
func (b *Breaker) off() bool { return b == nil || b.config.Off }

// enter waits until the delivery may make an attempt. It returns false if its context ended or a drain began.
func (b *Breaker) enter(ctx context.Context, f *flight.Flight) (pass, bool) {
	if b.off() {
		return pass{}, true
	}
	if b.isClosed.Load() {
		return pass{clock: b.clock.Load()}, true
	}
	return b.await(ctx, f)
}

func (b *Breaker) await(ctx context.Context, f *flight.Flight) (pass, bool) {
	w := &waiter{wake: make(chan struct{})}
	var p pass
	entered := false
	b.change(func(m *machine, now time.Time) {
		if m.state == BreakerClosed {
			p, entered = pass{clock: m.clock}, true
			return
		}
		if p.permit = m.take(now); p.permit {
			p.clock, entered = m.clock, true
			b.probes++
			return
		}
		b.waiting = append(b.waiting, w)
	})
	if entered {
		return p, true
	}
	ok := f.Await(ctx, w.wake, flight.NoTimeLimit)
	b.change(func(m *machine, _ time.Time) {
		if i := slices.Index(b.waiting, w); i >= 0 {
			b.waiting = slices.Delete(b.waiting, i, i+1)
		}
		if !ok {
			m.giveBack(w.permit)
			return
		}
		p = pass{clock: m.clock, permit: w.permit, waited: true}
	})
	return p, ok
}

// succeeded reports an attempt that ended without an error.
func (b *Breaker) succeeded(f *flight.Flight, p pass) {
	if b.off() {
		return
	}
	outcome := b.outcomes.Add(1)
	switch f.Receipt() {
	case flight.Handled, flight.Committed:
	case flight.NoReceipt: // on a router of its own nobody gives one
	default:
		b.proved(p)
		return
	}
	if !p.permit && b.isClosed.Load() && !b.isFailing.Load() && p.clock < b.floor.Load() {
		return // nothing would change
	}
	b.change(func(m *machine, now time.Time) { m.succeeded(keyOf(f), p.clock, p.permit, outcome, now) })
}

// failed reports an attempt that may succeed another time. It returns the clock of the failure.
func (b *Breaker) failed(f *flight.Flight, p pass, errorType string) (clock uint64) {
	if b.off() {
		return 0
	}
	b.change(func(m *machine, now time.Time) { clock = m.failed(keyOf(f), errorType, p.permit, now) })
	return clock
}

// failedForGood reports a message that no attempt can help.
func (b *Breaker) failedForGood(f *flight.Flight, p pass, errorType string) {
	if b.off() {
		return
	}
	outcome := b.outcomes.Add(1)
	b.change(func(m *machine, now time.Time) { m.failedForGood(keyOf(f), errorType, p.permit, outcome, now) })
}

// dropped reports a message that ended without any proof.
func (b *Breaker) dropped(p pass) {
	if b.off() {
		return
	}
	b.outcomes.Add(1)
	b.proved(p)
}

// proved gives back the permit of an attempt that proved nothing.
func (b *Breaker) proved(p pass) {
	if p.permit {
		b.change(func(m *machine, _ time.Time) { m.giveBack(true) })
	}
}

// mayGiveUp tells whether a message is at fault itself that failed first at the clock first, and whose
// retries are used up. isAway says that its last error is no message's fault.
func (b *Breaker) mayGiveUp(f *flight.Flight, first uint64, isAway bool) bool {
	if b.off() {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.machine.mayGiveUp(keyOf(f), first, isAway, time.Now())
}

// gaveUp counts a message whose retries were used up.
func (b *Breaker) gaveUp() {
	if !b.off() {
		b.outcomes.Add(1)
	}
}

// hold is Flight.Sleep for a delivery whose retries are used up. It ends earlier when the breaker opens: then it
// waits for a permit instead.
func (b *Breaker) hold(ctx context.Context, f *flight.Flight, d time.Duration) bool {
	b.mu.Lock()
	if s := b.machine.state; s == BreakerOpen || s == BreakerProbing {
		b.mu.Unlock()
		return true
	}
	b.held++
	wake := b.wake
	b.mu.Unlock()
	ok := f.Await(ctx, wake, d)
	b.mu.Lock()
	b.held--
	b.mu.Unlock()
	return ok
}

// rouseHeld makes those that are held look again. b.mu is held.
func (b *Breaker) rouseHeld() {
	close(b.wake)
	b.wake = make(chan struct{})
}

// follow does what the machine's state asks for, after it was before. b.mu is held.
func (b *Breaker) follow(before BreakerState, now time.Time) {
	m := &b.machine
	b.clock.Store(m.clock)
	b.floor.Store(m.floor())
	b.isFailing.Store(len(m.failing) > 0)
	b.isClosed.Store(m.state == BreakerClosed)
	if m.state == BreakerClosed && before == BreakerClosed {
		return
	}
	if before != m.state {
		b.changed(before, now)
	}
	b.letIn(now)
	b.setTimer(now)
}

// changed pauses or resumes the intake. b.mu is held.
func (b *Breaker) changed(before BreakerState, now time.Time) {
	m := &b.machine
	b.freshUntil = time.Time{}
	switch m.state {
	case BreakerOpen:
		if before == BreakerClosed { // else the pause stays
			b.pauses[m.cause]++
			b.reason = b.why()
			if b.intake != nil {
				b.intake.Pause(b.reason)
			}
		}
		b.rouseHeld() // to wait for a permit instead
	case BreakerProbing:
		// Those that are held may be the only ones at fault: let another one try from time to time.
		if b.intake != nil && m.misses%4 == 3 {
			b.freshUntil = now.Add(m.delay)
		}
	case BreakerClosed:
		if b.intake != nil {
			b.intake.Resume(b.reason)
		}
		b.reason = ""
	case BreakerRamping:
	}
	if b.onChange != nil {
		b.onChange(BreakerChange{From: before, To: m.state, Cause: m.cause, ErrorType: m.errorType, Since: m.since})
	}
}

// why tells the reason of the pause that begins. It is fixed for as long as the pause lasts.
func (b *Breaker) why() string {
	m, since := &b.machine, b.machine.since.UTC().Format(time.RFC3339)
	if m.cause == CauseDeadLetters {
		return fmt.Sprintf("dead letters: over %d %% of the last %d messages failed for good, the last by %q, and over %d within a minute; paused since %s",
			int(b.config.Guard.Share*100), b.config.Guard.Outcomes, m.errorType, b.config.Guard.PerMinute, since)
	}
	return fmt.Sprintf("outage: %d or more keys fail, the last by %q, and none has succeeded since %s; one message at a time is tried",
		b.config.Keys, m.errorType, m.failingSince.UTC().Format(time.RFC3339))
}

// letIn gives the free permits away: to those that wait, else to what the intake has. b.mu is held.
func (b *Breaker) letIn(now time.Time) {
	m := &b.machine
	if m.state == BreakerClosed {
		for _, w := range b.waiting {
			if !w.woken {
				w.woken = true
				close(w.wake)
			}
		}
		return
	}
	if !now.Before(b.freshUntil) {
		for _, w := range b.waiting {
			if w.woken {
				continue
			}
			if !m.take(now) {
				break
			}
			b.probes++
			w.woken, w.permit = true, true
			close(w.wake)
		}
	}
	if b.intake != nil && b.reason != "" {
		b.intake.Allow(b.reason, m.free())
	}
}

// setTimer lets tick come when something is due, or before. b.mu is held.
func (b *Breaker) setTimer(now time.Time) {
	m := &b.machine
	var at time.Time
	switch m.state {
	case BreakerClosed:
		return
	case BreakerOpen:
		at = m.probeAt
	case BreakerProbing, BreakerRamping:
		// What the intake let through may have been taken away by the broker before it came here: look again.
		at = now.Add(b.config.ProbeDelay)
	}
	if b.stopped || !b.rings.IsZero() && !at.Before(b.rings) {
		return
	}
	b.rings = at
	if b.timer == nil {
		b.timer = time.AfterFunc(at.Sub(now), b.tick)
		return
	}
	b.timer.Reset(at.Sub(now))
}

// tick does what is due.
func (b *Breaker) tick() {
	b.change(func(m *machine, now time.Time) {
		b.rings = time.Time{}
		if !b.stopped {
			m.tick(b.outcomes.Load(), now)
		}
	})
}

// keyOf names what a delivery is ordered by. One without a key is like no other.
func keyOf(f *flight.Flight) string {
	switch {
	case f.Key != "":
		return f.Key
	case f.ID != "":
		return "\x00" + f.ID
	}
	return "\x00" + f.Original.UUID
}
