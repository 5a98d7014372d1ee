package adapter

import (
	"context"
	"errors"
	"sync"
)

// ErrClosed is what errors wrap after Close. Adapters export it as their own.
var ErrClosed = errors.New("closed")

// Subscriptions is the life of one subscriber: it runs subscriptions until their context ends or it is closed. The
// zero value is ready.
type Subscriptions struct {
	mu     sync.Mutex
	closed bool
	ends   map[*context.CancelFunc]struct{} // of those that run
	wg     sync.WaitGroup
}

// Go runs one subscription in a goroutine of its own, with a context that ends with ctx or at Close. It refuses with
// [ErrClosed] after Close.
func (s *Subscriptions) Go(ctx context.Context, run func(context.Context)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	if s.ends == nil {
		s.ends = make(map[*context.CancelFunc]struct{})
	}
	s.ends[&cancel] = struct{}{}
	s.wg.Go(func() {
		defer s.ended(&cancel)
		run(ctx)
	})
	return nil
}

func (s *Subscriptions) ended(cancel *context.CancelFunc) {
	(*cancel)()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ends, cancel)
}

// Closed reports whether Close was called.
func (s *Subscriptions) Closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Close ends all subscriptions and waits for them. It is idempotent; each call waits.
func (s *Subscriptions) Close() {
	s.mu.Lock()
	s.closed = true
	for end := range s.ends {
		(*end)()
	}
	s.mu.Unlock()
	s.wg.Wait()
}
