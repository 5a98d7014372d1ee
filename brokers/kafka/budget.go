package kafka

import "sync"

// budget shares the window of one subscription among its partitions. Half of it is divided and kept for each, so that
// a partition whose handlers are stuck cannot starve the others (fault L4); the other half goes to whoever asks first.
type budget struct {
	mu      sync.Mutex
	free    int
	window  int
	reserve int // of each partition
	unused  int // what is kept for partitions and not used by them, in all
	shares  map[*share]struct{}
	waiting []*share // in order of asking
}

// share is one partition's part of a budget. Its fields are guarded by budget.mu.
type share struct {
	held    int
	waiting bool
	granted bool   // a slot was given to it while it waited
	ring    func() // tells it so; does not block
	owner   *assignment
}

func newBudget(window int) *budget {
	return &budget{window: window, free: window, shares: make(map[*share]struct{})}
}

// join adds s. leave takes it out; it must hold nothing by then.
func (b *budget) join(s *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shares[s] = struct{}{}
	b.divide()
	ringAll(b.grant(nil)) // less may be kept than before, by the rounding
}

func (b *budget) leave(s *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.withdrawLocked(s)
	b.free += s.held
	s.held = 0
	delete(b.shares, s)
	b.divide()
	ringAll(b.grant(nil))
}

func (b *budget) divide() {
	b.reserve = 0
	if n := len(b.shares); n > 1 {
		b.reserve = b.window / 2 / n
	}
	b.unused = 0
	for s := range b.shares {
		b.unused += max(0, b.reserve-s.held)
	}
}

func (b *budget) allowed(s *share) bool {
	return b.free > 0 && (s.held < b.reserve || b.free > b.unused)
}

func (b *budget) take(s *share) {
	if s.held < b.reserve {
		b.unused--
	}
	s.held++
	b.free--
}

// acquire takes a slot for s and reports whether there was one. If not, s is told when one was given to it; the next
// acquire then succeeds.
func (b *budget) acquire(s *share) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.granted {
		s.granted = false
		return true
	}
	if s.waiting {
		return false
	}
	if len(b.waiting) == 0 && b.allowed(s) {
		b.take(s)
		return true
	}
	s.waiting = true
	b.waiting = append(b.waiting, s)
	ringAll(b.grant(nil)) // those who wait may be beyond their reserve while s is not
	if s.granted {
		s.granted = false
		return true
	}
	return false
}

// release gives n slots of s back.
func (b *budget) release(s *share, n int) { ringAll(b.releaseTo(s, n, nil)) }

// releaseTo is release, but appends those who got a slot to granted instead of telling them.
func (b *budget) releaseTo(s *share, n int, granted []*share) []*share {
	if n == 0 {
		return granted
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.releaseLocked(s, n)
	return b.grant(granted)
}

func ringAll(granted []*share) {
	for _, s := range granted {
		s.ring()
	}
}

func (b *budget) releaseLocked(s *share, n int) {
	b.unused -= max(0, b.reserve-s.held)
	s.held -= n
	b.unused += max(0, b.reserve-s.held)
	b.free += n
}

// withdraw ends that s waits, and gives back what was granted and not used.
func (b *budget) withdraw(s *share) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.withdrawLocked(s)
	ringAll(b.grant(nil))
}

func (b *budget) withdrawLocked(s *share) {
	if s.granted {
		s.granted = false
		b.releaseLocked(s, 1)
	}
	if !s.waiting {
		return
	}
	s.waiting = false
	for i, w := range b.waiting {
		if w == s {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			return
		}
	}
}

// grant gives free slots to those who wait and may have one, in order, and appends them to granted.
func (b *budget) grant(granted []*share) []*share {
	for i := 0; i < len(b.waiting) && b.free > 0; {
		s := b.waiting[i]
		if !b.allowed(s) {
			i++
			continue
		}
		b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
		s.waiting = false
		b.take(s)
		s.granted = true
		granted = append(granted, s)
	}
	return granted
}
