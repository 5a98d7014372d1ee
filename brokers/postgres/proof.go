package postgres

import (
	"slices"
	"time"
)

// proof finds an id up to which no row can come any more. Reading begins above it: the index entries of
// deleted rows, of which there can be millions while an old snapshot keeps vacuum from them, are not walked again and again.
//
// An id is given out long before its row can be seen, to a transaction that has locked the table for writing
// and keeps that lock to its end. So take the last id that was given out, and then the transactions that have the lock:
// when none of these is left, all rows up to that id are there to be seen, or never will be. What other
// transactions do, however old they are, does not matter.
type proof struct {
	started   time.Time // the server's
	last      int64     // given out at the time of the last look
	candidate int64
	writers   []string // to wait for
}

// saw takes a look, whose parts may have been taken in any order, and returns the id that it proves for all snapshots that
// are taken from now on; 0: none. Sequences can go back when another server takes over: then all that was proven is void.
func (p *proof) saw(last int64, started time.Time, writers []string) (proven int64, void bool) {
	if void = !p.started.Equal(started) || last < p.last; void {
		void = !p.started.IsZero()
		*p = proof{started: started, last: last}
		return 0, void
	}
	done := !slices.ContainsFunc(p.writers, func(w string) bool { return slices.Contains(writers, w) })
	if done {
		proven = p.candidate
		// The look before this one saw p.last before these writers were seen.
		p.candidate, p.writers = p.last, writers
	}
	p.last = last
	return proven, false
}
