package middleware

import "time"

// rateGuard finds out when too many messages fail for good. It is pure: outcomes are numbered and time is passed in.
type rateGuard struct {
	config DeadLetterGuard

	share, minute int    // so many and one more are too many: of the last Outcomes, and of a minute
	since         uint64 // outcomes before this do not count

	last []loss // a ring of the latest, next is where the following one goes
	next int
	n    int
}

// loss is one message that failed for good: when, and as which outcome.
type loss struct {
	at      time.Time
	outcome uint64
}

func newRateGuard(c DeadLetterGuard) rateGuard {
	return rateGuard{config: c, share: int(c.Share * float64(c.Outcomes)), minute: c.PerMinute}
}

// lost counts one message that failed for good as the outcome of that number, and reports whether these
// are too many.
func (g *rateGuard) lost(outcome uint64, now time.Time) bool {
	if g.config.Off {
		return false
	}
	if g.last == nil {
		g.last = make([]loss, max(g.share, g.minute)+1)
	}
	g.last[g.next] = loss{now, outcome}
	g.next = (g.next + 1) % len(g.last)
	g.n = min(g.n+1, len(g.last))

	window := uint64(g.config.Outcomes)
	if outcome < g.since+window {
		return false
	}
	byShare, byTime := g.back(g.share), g.back(g.minute)
	return byShare != nil && byShare.outcome+window > outcome &&
		byTime != nil && now.Sub(byTime.at) < time.Minute
}

// back returns the loss that i others have followed, or nil.
func (g *rateGuard) back(i int) *loss {
	if i >= g.n {
		return nil
	}
	return &g.last[(g.next-1-i+2*len(g.last))%len(g.last)]
}

// reset forgets everything before the outcome of that number.
func (g *rateGuard) reset(outcome uint64) { g.n, g.next, g.since = 0, 0, outcome }
