package pulsar

import (
	"errors"
	"slices"
	"time"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

const (
	// The delays between tries while the server does not take acks, and the number of tries.
	firstDelay, maxDelay = 50 * time.Millisecond, 2 * time.Second
	ackTries             = 10
)

// settle is the settler's.
func (s *subscription) settle(batch []*hold) {
	acked := map[*source][]*entry{}
	now := time.Now()
	for _, h := range batch {
		e := h.Entry
		s.mu.Lock()
		if s.held[e.at] == h {
			delete(s.held, e.at)
		}
		s.mu.Unlock()
		switch {
		case h.Outcome == adapter.Acked:
			acked[e.source] = append(acked[e.source], e)
		case h.Outcome == adapter.Nacked:
			s.comeAgain(again{entry: e, at: now.Add(s.config.nackDelay(e.count)), counts: true})
		case h.Delay() > 0:
			s.settler.Reserve(1)
			s.sending.Go(func() {
				defer s.settler.Reserve(-1)
				s.delay(e, now.Add(h.Delay()))
			})
		case e.count == 1:
			s.leave(e, true)
		default:
			// A member that takes again what it gave back would spin.
			s.comeAgain(again{entry: e, at: now.Add(s.config.nackDelay(e.count - 1)), back: true})
		}
	}
	for src, entries := range acked {
		s.ack(src, entries)
	}
}

// comeAgain keeps a's place until its time.
func (s *subscription) comeAgain(a again) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.entry.breaks != a.entry.source.breaks.Load() {
		return // the server has it, see lost
	}
	i, _ := slices.BinarySearchFunc(s.again, a, func(x, a again) int {
		if x.at.After(a.at) {
			return 1
		}
		return -1 // behind those of the same time
	})
	s.again = slices.Insert(s.again, i, a)
	s.settler.Reserve(1)
	select {
	case s.kick <- struct{}{}:
	default: // it kicks already
	}
}

// ack tells the server what was acked, and again if it could not be told.
func (s *subscription) ack(src *source, entries []*entry) {
	ids := make([]pulsarclient.MessageID, len(entries))
	for i, e := range entries {
		ids[i] = e.message.ID()
	}
	var err error
	for try, delay := 1, firstDelay; ; try, delay = try+1, min(2*delay, maxDelay) {
		if err = s.tryAck(src, ids); err == nil || try == ackTries || !s.sleep(delay) {
			break
		}
	}
	s.mu.Lock()
	for _, e := range entries {
		switch {
		case err != nil || e.breaks != src.breaks.Load():
			s.settled.add(e.at) // it may be on its way to here
		case e.done:
			s.settled.remove(e.at)
		}
	}
	s.mu.Unlock()
	for _, e := range entries {
		s.leave(e, false)
	}
	if err != nil {
		s.log.Warn("pulsar: acks could not be sent; their messages may come again", "error", err, "acks", len(ids))
	}
}

var errClosing = errors.New("the subscription ends")

// tryAck waits for the client until the subscription's last time: while it connects again it does nothing else.
func (s *subscription) tryAck(src *source, ids []pulsarclient.MessageID) error {
	result := make(chan error, 1)
	s.broker.calls.Go(func() { result <- src.consumer.AckIDList(ids) })
	select {
	case err := <-result:
		return err
	case <-s.closing:
		return errClosing
	}
}

// sleep reports false if the subscription's last time has come.
func (s *subscription) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.closing:
		return false
	}
}

// batchID is an entry of the server's with several messages.
type batchID struct {
	source        *source
	breaks        uint64
	ledger, entry int64
}

func batchOf(e *entry) batchID { return batchID{e.source, e.breaks, e.at.ledger, e.at.entry} }

// batch is what this member has of an entry. The server takes acks of whole entries only, and takes back whole ones. So one is given
// back when nothing of it is at work here, and what was acked of it is remembered.
type batch struct {
	live  int
	back  bool
	acked []position
}

// join notes that a message of e's entry is here. s.mu is held.
func (s *subscription) join(e *entry) {
	if e.message.ID().BatchSize() < 2 {
		return
	}
	id := batchOf(e)
	if s.batches[id] == nil {
		s.batches[id] = new(batch)
	}
	s.batches[id].live++
}

// leave notes that e is at work here no more: it was acked, or goes back to the server.
func (s *subscription) leave(e *entry, back bool) {
	s.mu.Lock()
	if size := int(e.message.ID().BatchSize()); size >= 2 {
		back = s.leaveBatch(e, size, back)
	}
	s.mu.Unlock()
	if back && e.breaks == e.source.breaks.Load() {
		e.source.consumer.NackID(e.message.ID())
	}
}

// leaveBatch reports whether the entry goes back now. s.mu is held.
func (s *subscription) leaveBatch(e *entry, size int, back bool) bool {
	id := batchOf(e)
	b := s.batches[id]
	if b == nil {
		return false // the connection was lost
	}
	b.live--
	b.back = b.back || back
	if !back {
		b.acked = append(b.acked, e.at)
	}
	if b.live > 0 {
		return false
	}
	if b.back {
		s.remember(b)
	}
	if b.back || len(b.acked) == size {
		delete(s.batches, id)
	}
	return b.back
}

// remember has what was acked of b not handed over again. s.mu is held.
func (s *subscription) remember(b *batch) {
	for _, at := range b.acked {
		s.settled.add(at)
	}
}

// recent remembers the last positions that were added.
type recent struct {
	most  int
	order []position
	known map[position]bool
}

func (r *recent) add(p position) {
	if r.known == nil {
		r.known = make(map[position]bool)
	}
	if r.known[p] {
		return
	}
	if len(r.order) == r.most {
		delete(r.known, r.order[0])
		r.order = r.order[1:]
	}
	r.known[p] = true
	r.order = append(r.order, p)
}

func (r *recent) has(p position) bool { return r.known[p] }

func (r *recent) remove(p position) {
	delete(r.known, p)
	if i := slices.Index(r.order, p); i >= 0 {
		r.order = slices.Delete(r.order, i, i+1)
	}
}
