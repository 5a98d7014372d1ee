package kafka

import (
	"context"
	"sync"
	"time"
)

// lazyContext is a child of parent that can be ended alone, as context.WithCancel makes one. It is backed by one of the
// standard library from the first call of Done on: most handlers never ask, and each child of a context is an entry in its map.
type lazyContext struct {
	parent context.Context

	mu     sync.Mutex
	backed context.Context
	cancel context.CancelFunc
	over   bool
}

// Deadline is the parent's.
func (c *lazyContext) Deadline() (time.Time, bool) { return c.parent.Deadline() }

// Done makes the standard library's context.
func (c *lazyContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.back()
	return c.backed.Done()
}

// back makes the standard library's context, if there is none. mu is held.
func (c *lazyContext) back() {
	if c.backed != nil {
		return
	}
	c.backed, c.cancel = context.WithCancel(c.parent)
	if c.over {
		c.cancel()
	}
}

// Err is nil until the context has ended.
func (c *lazyContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.backed != nil {
		return c.backed.Err()
	}
	if err := c.parent.Err(); err != nil {
		return err
	}
	if c.over {
		return context.Canceled
	}
	return nil
}

// Value lets the standard library find the context that backs this one, so that children attach to it without a goroutine,
// and context.Cause tells why it has ended. It asks for that with a *int of its own as the key.
func (c *lazyContext) Value(key any) any {
	c.mu.Lock()
	if _, standard := key.(*int); standard && c.over {
		c.back()
	}
	backed := c.backed
	c.mu.Unlock()
	if backed != nil {
		return backed.Value(key)
	}
	return c.parent.Value(key)
}

// end ends the context.
func (c *lazyContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.cancel != nil {
		c.cancel()
	}
}
