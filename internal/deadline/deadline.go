// Package deadline is context.WithDeadline that costs next to nothing until somebody waits for its end.
// Most handlers return long before their limit and never ask; a timer and four allocations for each of
// them would be a tenth of what a message costs.
package deadline

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Context ends at its deadline, or with its parent, or when it is stopped. It is armed, that is backed by a
// context of the standard library, at the first call of Done; until then Err looks at the clock.
type Context struct {
	parent   context.Context
	deadline time.Time

	mu      sync.Mutex // held to arm and to stop
	armed   atomic.Pointer[armed]
	stopped atomic.Bool
}

// armed is a context of the standard library.
type armed struct {
	context.Context
	cancel context.CancelFunc
}

// New returns a context that ends at deadline. The caller stops it when its work is done.
func New(parent context.Context, deadline time.Time) *Context {
	return &Context{parent: parent, deadline: deadline}
}

// Deadline returns the earlier of the parent's deadline and its own.
func (c *Context) Deadline() (time.Time, bool) {
	if d, ok := c.parent.Deadline(); ok && d.Before(c.deadline) {
		return d, true
	}
	return c.deadline, true
}

// Done arms the context.
func (c *Context) Done() <-chan struct{} {
	if a := c.armed.Load(); a != nil {
		return a.Done()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.armed.Load()
	if a == nil {
		a = new(armed)
		a.Context, a.cancel = context.WithDeadline(c.parent, c.deadline)
		if c.stopped.Load() {
			a.cancel() // before anybody sees it: what has ended stays so
		}
		c.armed.Store(a)
	}
	return a.Done()
}

// Err is nil until the context has ended.
func (c *Context) Err() error {
	if a := c.armed.Load(); a != nil {
		return a.Err()
	}
	if err := c.parent.Err(); err != nil {
		return err
	}
	if c.stopped.Load() {
		return context.Canceled
	}
	if !time.Now().Before(c.deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// Value is the parent's. An armed context lets the standard library find the one that backs it, so that
// children attach to it without a goroutine.
func (c *Context) Value(key any) any {
	if a := c.armed.Load(); a != nil {
		return a.Value(key)
	}
	return c.parent.Value(key)
}

// Expired reports whether the deadline, and not the parent or Stop, has ended the context.
func (c *Context) Expired() bool {
	if a := c.armed.Load(); a != nil {
		return errors.Is(a.Err(), context.DeadlineExceeded) && c.parent.Err() == nil
	}
	return !c.stopped.Load() && c.parent.Err() == nil && !time.Now().Before(c.deadline)
}

// Stop ends the context. What was derived from it ends too.
func (c *Context) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.armed.Load(); a != nil {
		a.cancel() // first: stopped is read where none is armed
	}
	c.stopped.Store(true)
}
