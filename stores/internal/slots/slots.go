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
// (0: without limit). Asked is what the user wants, nil for the default: all but one of the pool, which
// stays free for pruning, the relay and health checks; fallback where the pool has no limit.
func Limit(asked *int, pool, fallback int) (int, error) {
	most := max(1, pool-1)
	switch {
	case asked == nil && pool <= 0:
		return fallback, nil
	case asked == nil:
		return most, nil
	case *asked < 1:
		return 0, fmt.Errorf("max concurrency %d: want at least 1", *asked)
	case pool > 0 && *asked > most:
		return 0, fmt.Errorf("max concurrency %d: the pool has %d connections and one stays free; want at most %d", *asked, pool, most)
	}
	return *asked, nil
}
