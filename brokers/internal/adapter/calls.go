package adapter

import "sync"

// Calls are what runs and is waited for at the end: the calls of a publisher, the background work of a broker. The zero value is ready.
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

// Refuse refuses further calls. It is idempotent.
func (c *Calls) Refuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// Close refuses further calls and waits for those that run. It is idempotent; each call waits.
func (c *Calls) Close() {
	c.Refuse()
	c.running.Wait()
}
