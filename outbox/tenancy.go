package outbox

import (
	"sync"
	"time"
)

// tenancy knows which buckets this relay may publish, and until when. It does no I/O.
//
// A page of rows works under a grant. A bucket is given back only when no grant has it, so that two
// relays never publish a bucket at once unless a lease runs out under a publish that hangs.
type tenancy struct {
	mu     sync.Mutex
	leases [Buckets]Lease
	held   [Buckets]bool
	leave  [Buckets]bool // to be given back; not granted any more
	inUse  [Buckets]int  // grants that have it
	until  time.Time     // when the leases run out, by our clock
	relays int
	gone   uint64 // leases lost
}

// grant is the buckets that one page may read and publish, with their leases.
type grant struct {
	leases [Buckets]Lease
	has    [Buckets]bool
}

func (g *grant) buckets() []int {
	list := make([]int, 0, Buckets)
	for b, has := range g.has {
		if has {
			list = append(list, b)
		}
	}
	return list
}

func (g *grant) all() []Lease {
	list := make([]Lease, 0, Buckets)
	for b, has := range g.has {
		if has {
			list = append(list, g.leases[b])
		}
	}
	return list
}

// grant gives what can be published until the given time, nil if that is nothing.
func (t *tenancy) grant(until time.Time) *grant {
	t.mu.Lock()
	defer t.mu.Unlock()
	if until.After(t.until) {
		return nil
	}
	g, any := &grant{}, false
	for b := range Buckets {
		if t.held[b] && !t.leave[b] {
			g.has[b], g.leases[b], any = true, t.leases[b], true
			t.inUse[b]++
		}
	}
	if !any {
		return nil
	}
	return g
}

// narrow leaves g only the buckets that rows are in.
func (t *tenancy) narrow(g *grant, rows []Row) {
	var needed [Buckets]bool
	for i := range rows {
		needed[rows[i].Bucket] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for b := range Buckets {
		if g.has[b] && !needed[b] {
			g.has[b] = false
			t.inUse[b]--
		}
	}
}

// done ends g.
func (t *tenancy) done(g *grant) { t.narrow(g, nil) }

// covers reports whether the leases of g that rows need are still ours until the given time.
func (t *tenancy) covers(g *grant, rows []Row, until time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if until.After(t.until) {
		return false
	}
	for i := range rows {
		b := rows[i].Bucket
		if !g.has[b] || !t.held[b] || t.leases[b] != g.leases[b] {
			return false
		}
	}
	return true
}

// renewed records what the database said in answer to a call that began a ttl before until.
func (t *tenancy) renewed(tenure Tenure, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until, t.relays = until, tenure.Relays
	var held [Buckets]bool
	count := 0
	for _, l := range tenure.Leases {
		if l.Bucket < 0 || l.Bucket >= Buckets {
			continue
		}
		if t.held[l.Bucket] && t.leases[l.Bucket] != l {
			t.gone++ // lost and taken again in between
		}
		held[l.Bucket], t.leases[l.Bucket] = true, l
		count++
	}
	for b := range Buckets {
		if t.held[b] && !held[b] && !until.IsZero() { // the zero time: they were given back
			t.gone++
		}
	}
	t.held = held
	// What is above our share is given back: first what nobody uses now.
	surplus := count - Share(tenure.Relays)
	t.leave = [Buckets]bool{}
	for _, idle := range []bool{true, false} {
		for b := Buckets - 1; b >= 0 && surplus > 0; b-- {
			if held[b] && !t.leave[b] && (t.inUse[b] == 0) == idle {
				t.leave[b] = true
				surplus--
			}
		}
	}
}

// lost records that the database said we do not have these leases any more.
func (t *tenancy) lost(leases []Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range leases {
		if t.held[l.Bucket] && t.leases[l.Bucket] == l {
			t.held[l.Bucket] = false
			t.gone++
		}
	}
}

// lostOnes counts the leases that were lost.
func (t *tenancy) lostOnes() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gone
}

// leaving takes the leases that can be given back now.
func (t *tenancy) leaving() []Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []Lease
	for b := range Buckets {
		if t.held[b] && t.leave[b] && t.inUse[b] == 0 {
			list = append(list, t.leases[b])
			t.held[b] = false
		}
	}
	return list
}

// short reports whether we have fewer buckets than our share, or some that wait to be given back: then
// the database is asked again soon.
func (t *tenancy) short() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	count := 0
	for b, h := range t.held {
		if h && t.leave[b] {
			return true
		}
		if h {
			count++
		}
	}
	return count < Share(t.relays)
}

// counts returns how many buckets we have now and how many relays there are.
func (t *tenancy) counts(now time.Time) (buckets, relays int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !now.Before(t.until) {
		return 0, t.relays
	}
	for _, h := range t.held {
		if h {
			buckets++
		}
	}
	return buckets, t.relays
}
