package middleware

import "time"

// BreakerState is how a [Breaker] stands.
type BreakerState int

// The states.
const (
	BreakerClosed  BreakerState = iota // everything runs
	BreakerOpen                        // nothing runs; waits for the next probe
	BreakerProbing                     // one attempt may run
	BreakerRamping                     // the probe succeeded; some may run
)

var stateNames = [...]string{"closed", "open", "probing", "ramping"}

// String gives the state in one word.
func (s BreakerState) String() string { return stateNames[s] }

// BreakerCause is why a [Breaker] opened.
type BreakerCause int

// The causes.
const (
	CauseOutage      BreakerCause = iota // distinct keys failed, and none succeeded
	CauseDeadLetters                     // too many messages failed for good
)

var causeNames = [...]string{"outage", "dead_letters"}

// String gives the cause as metrics name it.
func (c BreakerCause) String() string { return causeNames[c] }

// BreakerChange is one change of state.
type BreakerChange struct {
	From, To BreakerState
	Cause    BreakerCause

	// ErrorType is the kind of the last error, from a bounded set.
	ErrorType string

	// Since is when it last left BreakerClosed.
	Since time.Time
}

// BreakerStats is the state of a Breaker at one moment.
type BreakerStats struct {
	State BreakerState

	// Reason is why the intake is paused; "" while the breaker is closed. Cause and Since are that of the present
	// pause, or of the last one; Since is the zero time if there was none.
	Reason string
	Cause  BreakerCause
	Since  time.Time

	// NextProbe is when the next probe may run, in BreakerOpen.
	NextProbe time.Time

	// Waiting attempts wait for a permit. Held deliveries have used up their retries while nothing vouched for it
	// that they are at fault themselves; the breaker is closed, and they are tried again from time to time.
	Waiting, Held int

	// Outages and DeadLetterPauses count how often it opened, by cause. Probes counts attempts that were made
	// while it was not closed.
	Outages, DeadLetterPauses, Probes int64
}

// Stats returns the state now.
func (b *Breaker) Stats() BreakerStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := &b.machine
	s := BreakerStats{
		State: m.state, Reason: b.reason, Cause: m.cause, Since: m.since,
		Waiting: len(b.waiting), Held: b.held,
		Outages: b.pauses[CauseOutage], DeadLetterPauses: b.pauses[CauseDeadLetters], Probes: b.probes,
	}
	if m.state == BreakerOpen {
		s.NextProbe = m.probeAt
	}
	return s
}
