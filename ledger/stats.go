package ledger

import "sync/atomic"

// Stats is the state of a ledger, and what it has counted since Begin.
type Stats struct {
	// State is "quiet" (nothing is written), "watching" (suspects run alone), "probing" (so do messages that
	// were delivered often: the service is new to the ledger), "recording" (starts are written), "off" (the store
	// cannot be reached).
	State string
	// Reason is why the ledger is off.
	Reason string
	// Suspects is how many messages this process knows to be suspects.
	Suspects int

	Recorded   int64 // starts that were written
	Alone      int64 // attempts that ran alone
	Cleared    int64 // suspects that succeeded
	Convicted  int64 // attempts that were refused
	Unrecorded int64 // attempts that were to be recorded and could not be: the ledger went off, or they have no id
}

type counts struct{ recorded, alone, cleared, convicted, unrecorded atomic.Int64 }

// Stats returns the state and the counts. It does no I/O.
func (l *Ledger) Stats() Stats {
	l.mu.Lock()
	reason := l.state.off
	l.mu.Unlock()
	s := Stats{
		State:      modeNames[l.mode.Load()],
		Suspects:   l.suspects.len(),
		Recorded:   l.counts.recorded.Load(),
		Alone:      l.counts.alone.Load(),
		Cleared:    l.counts.cleared.Load(),
		Convicted:  l.counts.convicted.Load(),
		Unrecorded: l.counts.unrecorded.Load(),
	}
	if reason != nil {
		s.Reason = reason.Error()
	}
	return s
}
