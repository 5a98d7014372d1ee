package telemetry

import (
	"maps"
	"sync"
	"sync/atomic"
)

// cache is a small map that grows to a limit and then stays: reads take no lock and allocate nothing,
// writes copy. What does not fit is computed each time.
type cache[K comparable, V any] struct {
	entries atomic.Pointer[map[K]V]
	mu      sync.Mutex // writers
}

// get returns the value of k, made by fill when it is not there yet. fill may run more than once.
func (c *cache[K, V]) get(k K, limit int, fill func() V) V {
	if v, ok := c.peek(k); ok {
		return v
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok := c.peek(k); ok {
		return v
	}
	v := fill()
	next := map[K]V{}
	if old := c.entries.Load(); old != nil {
		if len(*old) >= limit {
			return v
		}
		next = maps.Clone(*old)
	}
	next[k] = v
	c.entries.Store(&next)
	return v
}

func (c *cache[K, V]) peek(k K) (V, bool) {
	if m := c.entries.Load(); m != nil {
		v, ok := (*m)[k]
		return v, ok
	}
	var zero V
	return zero, false
}

// full reports whether nothing more fits.
func (c *cache[K, V]) full(limit int) bool {
	m := c.entries.Load()
	return m != nil && len(*m) >= limit
}
