// Package slots bounds how many transactions a store has open, so that deliveries wait for their turn
// here and not for a connection of the pool.
package slots

import (
	"context"
	"fmt"
)

// Slots is a counting semaphore. It is safe for concurrent use.
type Slots struct{ free chan struct{} }

// New returns n free slots.
func New(n int) Slots { return Slots{free: make(chan struct{}, n)} }

// Take waits for a slot until ctx ends. The caller gives it back.
func (s Slots) Take(ctx context.Context) error {
	select {
	case s.free <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.free <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for one of %d transactions: %w", cap(s.free), context.Cause(ctx))
	}
}

// Give gives a slot back.
func (s Slots) Give() { <-s.free }

// Len is how many slots there are.
func (s Slots) Len() int { return cap(s.free) }

// Limit decides how many transactions a store may have open at once on a pool of that many connections
// (0: without limit). Asked is what the user wants, 0 for the default: all but one of the pool, which
// stays free for pruning, the relay and health checks; fallback without a limit.
func Limit(asked, pool, fallback int) (int, error) {
	switch {
	case asked < 0:
		return 0, fmt.Errorf("max concurrency %d: want at least 1", asked)
	case asked == 0 && pool <= 0:
		return fallback, nil
	case asked == 0:
		return max(1, pool-1), nil
	case pool > 0 && asked > max(1, pool-1):
		return 0, fmt.Errorf("max concurrency %d: the pool has %d connections and one stays free; want at most %d", asked, pool, max(1, pool-1))
	}
	return asked, nil
}
