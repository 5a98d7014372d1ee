package sqs

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// subscription is one consumer's work on its queue. Pollers receive and hand over; the settler's goroutine deletes
// what was acked and gives the rest back; the keeper prolongs what is held, and repeats deletes that failed.
//
// Locks: ending or visibility before mu. The settler's own are below both.
type subscription struct {
	broker   *Broker
	config   *Config
	log      *slog.Logger
	topic    string
	consumer string
	window   int
	out      chan *message.Message
	settler  *adapter.Settler[*entry]
	queue    atomic.Pointer[queue] // another one after the queue was deleted

	ending sync.Mutex
	ended  bool // of ending: nothing is held from now on

	turn chan struct{} // capacity 1: who has it takes places in the window
	more chan struct{} // capacity 1: a receive was full

	// visibility is held while visibilities are changed, so that a heartbeat does not undo what a nack or a release says.
	visibility sync.Mutex

	mu       sync.Mutex
	seq      uint64
	held     map[string]*hold // by message id; at most the window
	recalled []*entry         // taken away from their holders, to be given back
	unsent   []*entry         // acked, not deleted yet: each has its place in the window
	over     time.Time        // when the end has to be over; zero: it has not begun
	resume   time.Time        // no receive before that
	pause    time.Duration    // how long the next one is
}

type hold = adapter.Held[*entry]

// entry is one receive of one message.
type entry struct {
	id, receipt string
	group       string    // "" in standard queues
	seq         uint64    // its place in the order of receives
	count       int       // receives, this one included
	first       time.Time // before the receive
	until       time.Time // when the queue gives it to others; of the keeper
}

// What a subscription that releases waits before it receives again: others go first, and each receive counts.
const (
	firstPause = 250 * time.Millisecond
	maxPause   = 20 * time.Second
)

func newSubscription(b *Broker, topic, consumer string, window int, q queue) *subscription {
	s := &subscription{
		broker:   b,
		config:   &b.config,
		log:      b.config.Logger.With("topic", topic, "consumer", consumer, "queue", q.name),
		topic:    topic,
		consumer: consumer,
		window:   window,
		out:      make(chan *message.Message),
		turn:     make(chan struct{}, 1),
		more:     make(chan struct{}, 1),
		held:     make(map[string]*hold),
	}
	s.queue.Store(&q)
	s.settler = adapter.NewSettler(window, s.settle)
	// A delayed message of a FIFO queue would hold up its group.
	s.settler.Delays = !b.config.FIFO
	return s
}

// abandon ends a subscription that does not run.
func (s *subscription) abandon() {
	s.settler.Close()
	close(s.out)
}

func (s *subscription) run(ctx context.Context) {
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var keeper, pollers sync.WaitGroup
	keeper.Go(func() { s.keep(keeping) })
	for i := range min(s.config.Pollers, (s.window+maxEntries-1)/maxEntries) {
		pollers.Go(func() { s.poll(ctx, i > 0) })
	}
	<-ctx.Done()
	s.mu.Lock()
	s.over = time.Now().Add(s.config.WaitTime + s.config.CloseTimeout)
	s.mu.Unlock()
	s.ending.Lock()
	s.ended = true
	s.ending.Unlock()
	stop()
	keeper.Wait() // so that it does not prolong what is given back now
	s.end()
	pollers.Wait()
	s.giveBackRecalled() // what came meanwhile
	close(s.out)
}

// end tells the service all that is known, and gives the rest back.
func (s *subscription) end() {
	rest := s.settler.Close()
	back := make([]returned, len(rest))
	for i, h := range rest {
		back[i] = returned{h.Entry, 0}
	}
	ctx, cancel := s.lastCall()
	defer cancel()
	s.giveBack(ctx, back)
	for delay := firstDelay; s.deleteUnsent(ctx) > 0; delay = min(2*delay, maxDelay) {
		if sleep(ctx, delay) != nil {
			s.log.Error("sqs: acks could not be sent before the end; their messages come again", "messages", len(s.takeUnsent()))
			return
		}
	}
}

// lastCall is the context of a call that does not end with the subscription's. Those after its end have one limit for all.
func (s *subscription) lastCall() (context.Context, context.CancelFunc) {
	limit := time.Now().Add(s.config.CloseTimeout)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over.IsZero() && s.over.Before(limit) {
		limit = s.over
	}
	return context.WithDeadline(context.Background(), limit)
}

// recall takes from their holders what came after e in its group: e comes again, and before them. Their contexts end, and
// what becomes of them has no effect. It does not block.
func (s *subscription) recall(e *entry) {
	if e.group == "" {
		return
	}
	for _, h := range s.settler.Held() {
		if h.Entry.group == e.group && h.Entry.seq > e.seq && s.drop(h) {
			s.mu.Lock()
			s.recalled = append(s.recalled, h.Entry)
			s.mu.Unlock()
		}
	}
}

// lose lets go of what the queue gives, or has given, to others.
func (s *subscription) lose(h *hold, why error) {
	if !s.drop(h) {
		return // it was settled meanwhile
	}
	s.log.Warn("sqs: a delivery was lost before it was settled; its handler's context ends, and it comes again",
		"message", h.Entry.id, "deliveries", h.Entry.count, "error", why)
	s.recall(h.Entry)
}

func (s *subscription) drop(h *hold) bool {
	if !s.settler.Drop(h) {
		return false
	}
	s.forget(h.Entry)
	return true
}

// forget takes an entry that is held no longer off the list.
func (s *subscription) forget(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[e.id]; h != nil && h.Entry == e {
		delete(s.held, e.id)
	}
}

// rest makes the receives pause after a release, for longer each time until something is acked.
func (s *subscription) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pause = min(max(firstPause, 2*s.pause), maxPause)
	s.resume = time.Now().Add(s.pause)
}

func (s *subscription) rested() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pause = 0
}

// pausedFor is how long no receive begins.
func (s *subscription) pausedFor() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Until(s.resume)
}
