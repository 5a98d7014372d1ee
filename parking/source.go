package parking

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	// statementTimeout bounds one statement of a source. A statement can wait for the row of a key that is being
	// drained elsewhere.
	statementTimeout = 30 * time.Second

	// maxErrorDelay bounds the delay after a statement that failed.
	maxErrorDelay = 30 * time.Second

	// countEvery is how many polls there are to one count of what is parked.
	countEvery = 10

	// auditRetention is how long the audit is kept, and auditBatch what one statement deletes of it.
	auditRetention = 90 * 24 * time.Hour
	auditBatch     = 1000
)

// SourceConfig describes a [Source]. Consumer and Ledger are required.
type SourceConfig struct {
	Consumer string
	Ledger   Ledger
	Policy   Policy

	// Logger is told of statements that failed, and of messages that were removed without an effect. Default
	// slog.Default().
	Logger *slog.Logger
}

// Source is a Watermill subscriber of the messages of released keys: of each key one at a time, in order, the
// next one after the ack of the last. Any number of replicas may have one. It reads; what moves a message out of
// its key is the transaction of its effect, in [Store].Once. A message that is acked without that, because its type
// has no handler or its error said Drop, is removed and kept in the audit. One that is nacked or given back
// comes again after a delay. Safe for concurrent use.
type Source struct {
	config SourceConfig
	owner  string
	wake   chan struct{}

	mu      sync.Mutex
	closed  bool
	cancels map[int]context.CancelFunc
	next    int
	count   Count
	counted bool
	running sync.WaitGroup
}

// NewSource checks its argument. It does no I/O.
func NewSource(c SourceConfig) (*Source, error) {
	if c.Consumer == "" {
		return nil, errors.New(`parking: SourceConfig.Consumer is "": want the consumer's stable name`)
	}
	if c.Ledger == nil {
		return nil, errors.New("parking: SourceConfig.Ledger is nil: want the store's Parking()")
	}
	if err := c.Policy.Validate(); err != nil {
		return nil, err
	}
	c.Policy = c.Policy.withDefaults()
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return &Source{config: c, owner: watermill.NewUUID(), wake: make(chan struct{}, 1), cancels: map[int]context.CancelFunc{}}, nil
}

// Source returns a source for the parker's consumer, with its policy.
func (p *Parker) Source(logger *slog.Logger) (*Source, error) {
	return NewSource(SourceConfig{Consumer: p.consumer, Ledger: p.ledger, Policy: p.policy, Logger: logger})
}

// Subscribe implements message.Subscriber. topic is the consumer's own. The channel is closed when ctx has ended, or
// after Close.
func (s *Source) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("parking: subscribe %q: the source is closed", s.config.Consumer)
	}
	ctx, cancel := context.WithCancel(ctx)
	id := s.next
	s.next++
	s.cancels[id] = cancel
	sub := &subscription{Source: s, topic: topic, out: make(chan *message.Message), working: map[string]struct{}{}}
	s.running.Go(func() {
		sub.run(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		cancel()
		delete(s.cancels, id)
	})
	return sub.out, nil
}

// Close implements message.Subscriber: it ends the subscriptions and waits for that. It is idempotent.
func (s *Source) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, cancel := range s.cancels {
		cancel()
	}
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// Wake makes the source look for released keys now. It does not block.
func (s *Source) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Count returns what was parked when the source counted last, every tenth poll, and false before that. It does
// no I/O.
func (s *Source) Count() (Count, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count, s.counted
}

// subscription is one Subscribe call.
type subscription struct {
	*Source
	topic string
	out   chan *message.Message

	mu      sync.Mutex
	working map[string]struct{} // the keys that have a worker
	workers sync.WaitGroup
}

// run looks for released keys until ctx ends, and then waits for its workers.
func (s *subscription) run(ctx context.Context) {
	defer close(s.out)
	defer s.leave(ctx)
	defer s.workers.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var delay time.Duration
	for polls := 0; ; polls++ {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.wake:
		}
		err := s.look(ctx)
		if polls%countEvery == 0 {
			err = errors.Join(err, s.recount(ctx))
		}
		if err == nil {
			delay = 0
			timer.Reset(s.config.Policy.Poll*9/10 + rand.N(s.config.Policy.Poll/5+1)) // replicas are not to look in step
			continue
		}
		if ctx.Err() != nil {
			return
		}
		delay = min(max(2*delay, s.config.Policy.Poll), max(maxErrorDelay, s.config.Policy.Poll))
		s.warn(ctx, "parking: released keys cannot be read", "", err)
		timer.Reset(delay)
	}
}

// look starts a worker for each key that it gets.
func (s *subscription) look(ctx context.Context) error {
	s.mu.Lock()
	free := s.config.Policy.Concurrency - len(s.working)
	s.mu.Unlock()
	if free <= 0 {
		return nil
	}
	stmt, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	keys, err := s.config.Ledger.Lease(stmt, s.config.Consumer, s.owner, s.config.Policy.Lease, free)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if s.begin(key) {
			s.workers.Go(func() {
				s.work(ctx, key)
				s.end(key)
			})
		}
	}
	return nil
}

// begin reports whether the key has no worker yet: a lease can end while its worker waits.
func (s *subscription) begin(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.working[key]; there {
		return false
	}
	s.working[key] = struct{}{}
	return true
}

func (s *subscription) end(key string) {
	s.mu.Lock()
	delete(s.working, key)
	s.mu.Unlock()
	s.Wake()
}

// work yields the messages of a key until it has none, is not released any more, or is another's.
func (s *subscription) work(ctx context.Context, key string) {
	delay := s.config.Policy.HoldDelay
	for ctx.Err() == nil {
		done, more, err := s.step(ctx, key)
		if err != nil && ctx.Err() == nil {
			s.warn(ctx, "parking: a released key cannot be drained", key, err)
		}
		switch {
		case !more && err == nil:
			return
		case done && err == nil:
			delay = s.config.Policy.HoldDelay
			continue
		}
		if !sleep(ctx, delay) {
			return
		}
		delay = min(2*delay, s.config.Policy.MaxHoldDelay)
	}
}

// step yields one message and waits for what becomes of it. done says that it has left its place, more that
// there may be another one.
func (s *subscription) step(ctx context.Context, key string) (done, more bool, err error) {
	stmt, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	m, found, err := s.config.Ledger.Next(stmt, s.config.Consumer, key, s.owner, s.config.Policy.Lease)
	if err != nil || !found {
		return false, false, err
	}
	t := &ticket{Message: m}
	released := make(chan struct{})
	msg := t.message(ctx, s.topic, sync.OnceFunc(func() { close(released) }))
	select {
	case s.out <- msg:
	case <-ctx.Done():
		return false, true, nil
	}
	select {
	case <-msg.Acked():
		if t.done.Load() {
			return true, true, nil
		}
		return true, true, s.remove(ctx, t)
	case <-msg.Nacked():
	case <-released:
	case <-ctx.Done():
	}
	return false, true, nil
}

// remove takes a message out of its key that was acked without an effect.
func (s *subscription) remove(ctx context.Context, t *ticket) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
	defer cancel()
	removed, err := s.config.Ledger.Skip(ctx, t.Consumer, t.Key, t.Seq,
		Reason{Actor: "headrace", Reason: "acked without an effect: its type has no handler, or its error said drop"})
	if removed {
		s.config.Logger.WarnContext(ctx, "parking: a released message was acked without an effect and removed; it is in the audit",
			"consumer", t.Consumer, "key", t.Key, "seq", t.Seq, "id", t.ID)
	}
	return err
}

// recount counts what is parked, and prunes the audit.
func (s *subscription) recount(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	c, err := s.config.Ledger.Count(ctx, s.config.Consumer)
	if err != nil {
		return err
	}
	s.Source.mu.Lock()
	s.count, s.counted = c, true
	s.Source.mu.Unlock()
	_, err = s.config.Ledger.PruneAudit(ctx, time.Now().Add(-auditRetention), auditBatch)
	return err
}

// leave gives the leases to the others.
func (s *subscription) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
	defer cancel()
	if err := s.config.Ledger.Leave(ctx, s.config.Consumer, s.owner); err != nil {
		s.warn(ctx, "parking: leases were not given up; they end by themselves", "", err)
	}
}

func (s *subscription) warn(ctx context.Context, what, key string, err error) {
	args := []any{"consumer", s.config.Consumer, "error", err}
	if key != "" {
		args = append(args, "key", key)
	}
	s.config.Logger.WarnContext(ctx, what, args...)
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
