package adapter

import "sync"

// Calls are the calls of a publisher that its Close waits for. The zero value is ready.
type Calls struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// Begin notes a call, which ends with Done. It refuses with [ErrClosed] after Close.
func (c *Calls) Begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.running.Add(1)
	return nil
}

// Done ends a call.
func (c *Calls) Done() { c.running.Done() }

// Close refuses further calls and waits for those that run. It is idempotent; each call waits.
func (c *Calls) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
}
