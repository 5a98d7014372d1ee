package poison

import (
	"sync"
	"time"
)

// Stats is the state of a Poison at one moment.
type Stats struct {
	// Held is the number of deliveries that are held now because their dead letter cannot be written.
	// Each holds its lane.
	Held int

	// Since is when the first of an unbroken row of holds began; the zero time if none is held.
	Since time.Time

	// LastError is why the last failed try failed, while a delivery is held.
	LastError error

	// Stored and WriteErrors count dead letters stored and tries that failed, since the start.
	Stored, WriteErrors uint64
}

// Blocked is the number of deliveries that are held now because their dead letter cannot be written.
func (p *Poison) Blocked() int { return p.Stats().Held }

// Stats returns the state now.
func (p *Poison) Stats() Stats {
	p.books.mu.Lock()
	defer p.books.mu.Unlock()
	return p.books.stats
}

type books struct {
	mu    sync.Mutex
	stats Stats
}

func (b *books) stored() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Stored++
}

// failed counts a try that failed; the first of a delivery begins its hold.
func (b *books) failed(err error, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.WriteErrors++
	b.stats.LastError = err
	if !first {
		return
	}
	if b.stats.Held == 0 {
		b.stats.Since = time.Now()
	}
	b.stats.Held++
}

// release ends a hold.
func (b *books) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Held--
	if b.stats.Held == 0 {
		b.stats.Since, b.stats.LastError = time.Time{}, nil
	}
}
