package ledger

import (
	"context"
	"sync"
	"sync/atomic"
)

// closed is what a closed gate adds to its count: far below what any number of attempts makes up for.
const closed = -1 << 40

// gate lets any number of attempts run, or one alone. Suspects that wait go before the others.
type gate struct {
	count atomic.Int64  // the attempts that run, plus closed while a suspect is or wants to be alone
	idle  chan struct{} // signalled when the last attempt has left a closed gate
	turn  chan struct{} // held by the suspect that has closed it

	mu     sync.Mutex
	opened chan struct{} // closed when a closed gate opens
}

func newGate() *gate {
	return &gate{idle: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
}

// enter waits until no suspect is alone. It returns false if done or drain was first.
func (g *gate) enter(ctx context.Context, drain <-chan struct{}) bool {
	for g.count.Add(1) <= 0 {
		g.leave()
		opened := g.waitFor()
		if opened == nil { // it has opened just now
			continue
		}
		select {
		case <-opened:
		case <-ctx.Done():
			return false
		case <-drain:
			return false
		}
	}
	return true
}

func (g *gate) leave() {
	if g.count.Add(-1) == closed {
		select {
		case g.idle <- struct{}{}:
		default: // the suspect has not read the last signal; it looks again
		}
	}
}

func (g *gate) waitFor() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened
}

// enterAlone closes the gate and waits until nothing else runs. It returns false if ctx or drain was first; the
// gate is open again then.
func (g *gate) enterAlone(ctx context.Context, drain <-chan struct{}) bool {
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return false
	case <-drain:
		return false
	}
	// The channel first: who finds the gate closed finds the channel too.
	g.mu.Lock()
	g.opened = make(chan struct{})
	g.mu.Unlock()
	g.count.Add(closed)
	for g.count.Load() != closed {
		select {
		case <-g.idle:
		case <-ctx.Done():
			g.leaveAlone()
			return false
		case <-drain:
			g.leaveAlone()
			return false
		}
	}
	return true
}

func (g *gate) leaveAlone() {
	g.count.Add(-closed)
	g.mu.Lock()
	close(g.opened)
	g.opened = nil
	g.mu.Unlock()
	<-g.turn
}
