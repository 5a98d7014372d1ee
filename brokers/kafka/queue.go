package kafka

import (
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

// queue is what a subscription that is pulled from has to give out. Its deliveries have their slots in the window, so that it is bounded;
// they are handed over when they are taken out.
type queue struct {
	mu    sync.Mutex
	holds fifo[*hold]
	ready chan struct{} // capacity 1; closed at the end
}

var _ brokers.Pull = (*member)(nil)

// Next takes a delivery out of the queue.
func (m *member) Next() *message.Message {
	m.queue.mu.Lock()
	defer m.queue.mu.Unlock()
	if m.queue.holds.len() == 0 || m.ctx.Err() != nil {
		return nil
	}
	h := m.queue.holds.pop()
	h.from.queued--
	return &h.msg
}

// Ready tells when Next may have one.
func (m *member) Ready() <-chan struct{} { return m.queue.ready }

// offer hands h over if somebody takes it at once.
func (m *member) offer(h *hold) bool {
	if !m.pulled {
		select {
		case m.out <- &h.msg:
			return true
		default:
			return false
		}
	}
	m.queue.mu.Lock()
	defer m.queue.mu.Unlock()
	m.queue.holds.push(h)
	h.from.queued++
	if m.queue.holds.len() > 1 {
		m.signal() // whoever has made room takes one
	}
	return true
}

// signal tells that there is something in the queue. Nobody sends it after the last assignment has ended.
func (m *member) signal() {
	select {
	case m.queue.ready <- struct{}{}:
	default:
	}
}

// unqueue takes out what is of a, and has not been handed over.
func (m *member) unqueue(a *assignment) []*hold {
	m.queue.mu.Lock()
	defer m.queue.mu.Unlock()
	if a.queued == 0 {
		return nil
	}
	a.queued = 0
	var kept fifo[*hold]
	var of []*hold
	for m.queue.holds.len() > 0 {
		if h := m.queue.holds.pop(); h.from == a {
			of = append(of, h)
		} else {
			kept.push(h)
		}
	}
	m.queue.holds = kept
	return of
}

// inQueue returns how many deliveries of a were not taken yet.
func (m *member) inQueue(a *assignment) int {
	m.queue.mu.Lock()
	defer m.queue.mu.Unlock()
	return a.queued
}
