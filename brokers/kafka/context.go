package kafka

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// lazyContext is a child of parent that can be ended alone, as context.WithCancel makes one. It is backed by one of the
// standard library from the first call of Done on: most handlers never ask, and each child of a context is an entry in its map.
type lazyContext struct {
	parent context.Context

	mu     sync.Mutex // held to make backed and to end
	backed atomic.Pointer[backing]
	over   atomic.Bool
}

// backing is a context of the standard library.
type backing struct {
	context.Context
	cancel context.CancelFunc
}

// Deadline is the parent's.
func (c *lazyContext) Deadline() (time.Time, bool) { return c.parent.Deadline() }

// Done makes the standard library's context.
func (c *lazyContext) Done() <-chan struct{} { return c.back().Done() }

// back returns the standard library's context, which it makes if there is none.
func (c *lazyContext) back() *backing {
	if b := c.backed.Load(); b != nil {
		return b
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.backed.Load(); b != nil {
		return b
	}
	b := new(backing)
	b.Context, b.cancel = context.WithCancel(c.parent)
	if c.over.Load() {
		b.cancel() // before anybody sees it: what has ended stays so
	}
	c.backed.Store(b)
	return b
}

// Err is nil until the context has ended.
func (c *lazyContext) Err() error {
	if b := c.backed.Load(); b != nil {
		return b.Err()
	}
	if err := c.parent.Err(); err != nil {
		return err
	}
	if c.over.Load() {
		return context.Canceled
	}
	return nil
}

// Value lets the standard library find the context that backs this one, so that children attach to it without a goroutine,
// and context.Cause tells why it has ended. It asks for that with a *int of its own as the key.
func (c *lazyContext) Value(key any) any {
	if _, standard := key.(*int); standard && (c.backed.Load() != nil || c.over.Load()) {
		return c.back().Value(key)
	}
	return c.parent.Value(key)
}

// end ends the context.
func (c *lazyContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.backed.Load(); b != nil {
		b.cancel() // first: over is read where there is none
	}
	c.over.Store(true)
}
