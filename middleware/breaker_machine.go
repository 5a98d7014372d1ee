package middleware

import (
	"strings"
	"time"
)

// machine is what a Breaker decides by. It has no goroutine, no clock and no channel: time is passed in, and
// the Breaker calls it under its mutex and does what it says.
//
// Its own clock is the number of failures so far. An attempt remembers the clock of its beginning, a
// failed one the clock of its end; so it is known whether an attempt that succeeded had begun after another
// one had failed, without comparing times.
type machine struct {
	config BreakerConfig
	random func() float64 // in [0, 1)

	state     BreakerState
	cause     BreakerCause // of the present or the last opening
	since     time.Time    // when it left BreakerClosed
	errorType string       // of the last failure

	clock     uint64
	successes [2]success // of distinct keys, the latest begun

	// failing are keys that failed with no success in between, as many as matter.
	failing      map[string]struct{}
	failingSince time.Time

	// While it is not closed an attempt needs a permit.
	delay   time.Duration // until the next probe
	probeAt time.Time     // in BreakerOpen
	limit   int           // of permits at once, in BreakerProbing and BreakerRamping
	inUse   int           // permits, of any episode
	overdue int           // permits whose attempts have not returned for so long that others do not wait for them
	takenAt time.Time     // when the last permit was given
	passed  int           // successes with the present limit
	stepAt  time.Time     // when the limit is raised if nothing is in use: there is no traffic
	misses  int           // probes that failed in a row

	// suspects are keys that failed with a permit since it opened: they may be at fault themselves. They say
	// nothing about a ramp that goes well otherwise.
	suspects map[string]struct{}

	guard        rateGuard
	allowedUntil time.Time // dead letters are not held back before
}

// success is the last begun attempt of a key that succeeded.
type success struct {
	key   string
	begun uint64
	ok    bool
}

func newMachine(c BreakerConfig, random func() float64) machine {
	return machine{config: c, random: random, failing: map[string]struct{}{}, suspects: map[string]struct{}{}, guard: newRateGuard(c.Guard)}
}

// take gives a permit, if one is free.
func (m *machine) take(now time.Time) bool {
	if m.free() == 0 {
		return false
	}
	m.inUse++
	m.takenAt = now
	return true
}

// free is how many permits take would give.
func (m *machine) free() int {
	if m.state != BreakerProbing && m.state != BreakerRamping {
		return 0
	}
	return max(m.limit-m.inUse, 0)
}

// giveBack takes back the permit of an attempt that proved nothing.
func (m *machine) giveBack(permit bool) {
	switch {
	case !permit:
	case m.inUse > 0: // it may have been an overdue one: then one attempt more may run, for each of those
		m.inUse--
	default:
		m.overdue--
	}
}

// failed counts an attempt that may succeed another time. It returns the clock of this failure.
func (m *machine) failed(key, errorType string, permit bool, now time.Time) uint64 {
	m.clock++
	m.errorType = errorType
	m.giveBack(permit)
	switch {
	case m.state == BreakerClosed:
		m.note(key, now)
		if len(m.failing) >= m.config.Keys && now.Sub(m.failingSince) >= m.config.After {
			m.open(CauseOutage, m.config.ProbeDelay, now)
		}
	case permit:
		m.miss(key, now)
	}
	return m.clock
}

// failedForGood counts a message that no attempt can help, as the outcome of that number.
func (m *machine) failedForGood(key, errorType string, permit bool, outcome uint64, now time.Time) {
	m.giveBack(permit)
	tooMany := m.guard.lost(outcome, now)
	switch {
	case m.state == BreakerClosed:
		if tooMany && !now.Before(m.allowedUntil) {
			m.errorType = errorType
			m.open(CauseDeadLetters, m.config.Guard.Pause, now)
		}
	case permit && m.cause == CauseDeadLetters:
		m.errorType = errorType
		m.miss(key, now)
	}
	// In an outage it says nothing: undecodable bytes fail without the dependency.
}

// succeeded counts an attempt that began at the clock begun.
func (m *machine) succeeded(key string, begun uint64, permit bool, outcome uint64, now time.Time) {
	m.giveBack(permit)
	m.vouch(key, begun)
	switch {
	case m.state == BreakerClosed:
		clear(m.failing)
	case permit && (m.state == BreakerProbing || m.state == BreakerRamping):
		clear(m.failing)
		m.misses = 0
		if m.passed++; m.passed >= m.limit {
			m.step(outcome, now)
		}
	}
}

// tick does what is due at now.
func (m *machine) tick(outcome uint64, now time.Time) {
	switch m.state {
	case BreakerOpen:
		if !now.Before(m.probeAt) {
			m.state, m.limit, m.passed = BreakerProbing, 1, 0
			clear(m.failing)
		}
	case BreakerProbing:
		m.giveUpOn(now)
	case BreakerRamping:
		if m.inUse == 0 && len(m.failing) < m.config.Keys && !now.Before(m.stepAt) {
			m.step(outcome, now)
		}
		m.giveUpOn(now)
	case BreakerClosed:
	}
}

// giveUpOn lets others go on without the attempts that have all permits, if none was given for long. It is no miss: a slow success of
// theirs counts as long as it probes.
func (m *machine) giveUpOn(now time.Time) {
	if m.free() == 0 && now.Sub(m.takenAt) >= m.config.MaxProbeDelay {
		m.overdue += m.inUse
		m.inUse = 0
	}
}

// mayGiveUp tells whether a message of key, whose retries are used up and which failed first at the clock
// first, is at fault itself. Nobody can vouch for that while the error is no message's fault.
func (m *machine) mayGiveUp(key string, first uint64, isAway bool, now time.Time) bool {
	return m.state == BreakerClosed && (!isAway && m.vouched(key, first) || now.Before(m.allowedUntil))
}

// vouched tells whether another key succeeded in an attempt that began after the clock first.
func (m *machine) vouched(key string, first uint64) bool {
	for _, s := range m.successes {
		if s.ok && s.key != key && s.begun >= first {
			return true
		}
	}
	return false
}

// vouch remembers a success. Two of distinct keys are enough: one of them is not the asker's.
func (m *machine) vouch(key string, begun uint64) {
	oldest := &m.successes[0]
	for i := range m.successes {
		s := &m.successes[i]
		if s.ok && s.key == key {
			s.begun = max(s.begun, begun)
			return
		}
		if !s.ok || oldest.ok && s.begun < oldest.begun {
			oldest = s
		}
	}
	if !oldest.ok || oldest.begun <= begun {
		*oldest = success{key: strings.Clone(key), begun: begun, ok: true} // the key may be a piece of a payload
	}
}

// floor is the clock below which the beginning of a success is of no interest: any key has a better one.
func (m *machine) floor() uint64 {
	if !m.successes[0].ok || !m.successes[1].ok {
		return 0
	}
	return min(m.successes[0].begun, m.successes[1].begun) + 1
}

func (m *machine) note(key string, now time.Time) {
	if len(m.failing) == 0 {
		m.failingSince = now
	}
	if len(m.failing) < m.config.Keys {
		m.failing[strings.Clone(key)] = struct{}{}
	}
}

// miss counts an attempt with a permit that failed.
func (m *machine) miss(key string, now time.Time) {
	if m.state != BreakerProbing && m.state != BreakerRamping {
		return // a late one of an earlier ramp
	}
	if m.state == BreakerRamping && !m.isNews(key, now) {
		return
	}
	m.suspect(key)
	m.misses++
	longest := m.config.MaxProbeDelay
	if m.cause == CauseDeadLetters {
		longest = m.config.Guard.MaxPause
	}
	m.wait(min(2*m.delay, longest), now)
}

// isNews tells whether an attempt of key that failed in a ramp ends it.
func (m *machine) isNews(key string, now time.Time) bool {
	if _, known := m.suspects[key]; known {
		return false
	}
	m.suspect(key)
	m.note(key, now)
	return len(m.failing) >= m.config.Keys
}

// maxSuspects is the most keys that are remembered as suspects.
const maxSuspects = 1 << 10

func (m *machine) suspect(key string) {
	if len(m.suspects) < maxSuspects {
		m.suspects[strings.Clone(key)] = struct{}{}
	}
}

func (m *machine) open(cause BreakerCause, delay time.Duration, now time.Time) {
	m.cause, m.since, m.misses = cause, now, 0
	m.wait(delay, now)
}

func (m *machine) wait(delay time.Duration, now time.Time) {
	m.state, m.delay = BreakerOpen, delay
	m.probeAt = now.Add(delay - time.Duration(m.random()*float64(delay)/5))
}

// step lets twice as many attempts run at once, or all.
func (m *machine) step(outcome uint64, now time.Time) {
	if m.limit >= m.config.Ramp {
		m.close(outcome)
		return
	}
	m.state, m.limit, m.passed = BreakerRamping, min(2*m.limit, m.config.Ramp), 0
	m.stepAt = now.Add(m.config.ProbeDelay)
}

func (m *machine) close(outcome uint64) {
	m.state = BreakerClosed
	clear(m.failing)
	clear(m.suspects)
	m.guard.reset(outcome)
}
