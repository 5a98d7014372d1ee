package adapter

import (
	"errors"
	"maps"
	"slices"
	"sync"
)

// Member is what a broker opens and closes: a subscriber or a publisher.
type Member interface {
	comparable
	Close() error
}

// Members are what a broker has opened and nobody has closed yet. The zero value is ready. It is safe for concurrent use.
type Members[M Member] struct {
	mu     sync.Mutex
	closed bool
	open   map[M]struct{}
}

// Add remembers m until Remove. It refuses with [ErrClosed] after Close.
func (s *Members[M]) Add(m M) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.open == nil {
		s.open = make(map[M]struct{})
	}
	s.open[m] = struct{}{}
	return nil
}

// Remove forgets m, which has closed.
func (s *Members[M]) Remove(m M) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, m)
}

// All returns those that are open, in no order.
func (s *Members[M]) All() []M {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.open))
}

// Closed reports whether Close was called.
func (s *Members[M]) Closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Close refuses further members, closes all there are at the same time, waits for them and joins their errors. It is idempotent: each
// call closes what is open still. A member may call Remove in its Close.
func (s *Members[M]) Close() error {
	s.mu.Lock()
	s.closed = true
	open := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	errs := make([]error, len(open))
	var closing sync.WaitGroup
	for i, m := range open {
		closing.Go(func() { errs[i] = m.Close() })
	}
	closing.Wait()
	return errors.Join(errs...)
}
