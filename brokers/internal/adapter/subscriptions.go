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
	ends   []context.CancelFunc
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
	s.ends = append(s.ends, cancel)
	s.wg.Go(func() {
		defer cancel()
		run(ctx)
	})
	return nil
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
	for _, end := range s.ends {
		end()
	}
	s.ends = nil
	s.mu.Unlock()
	s.wg.Wait()
}
