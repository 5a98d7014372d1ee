package memory

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

// subscriber is one member, or several, of the group of its consumer.
type subscriber struct {
	broker       *Broker
	subscription brokers.Subscription

	mu     sync.Mutex
	closed bool
	ends   []context.CancelFunc
	wg     sync.WaitGroup
}

// Subscribe starts a subscription. It ends, and its channel is closed, when ctx ends or the subscriber or the
// broker is closed; what was not acked by then goes to the group's next subscription.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	want := s.subscription
	if want.Topic != "" && want.Topic != topic {
		return nil, fmt.Errorf("memory: subscriber of consumer %q is for topic %q, not for %q",
			want.Consumer, want.Topic, topic)
	}
	t, err := s.broker.topic(topic)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("memory: subscribe to topic %q: subscriber of consumer %q: %w", topic, want.Consumer, ErrClosed)
	}
	ctx, cancel := context.WithCancel(ctx)
	n := &subscription{
		topic:  t,
		group:  t.join(want.Consumer),
		window: want.Window,
		out:    make(chan *message.Message),
		kick:   make(chan struct{}, 1),
	}
	t.enter(n)
	s.ends = append(s.ends, cancel)
	s.wg.Go(func() {
		defer cancel()
		n.run(ctx)
	})
	return n.out, nil
}

// Close ends all subscriptions and waits for them. It is idempotent.
func (s *subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, end := range s.ends {
		end()
	}
	s.ends = nil
	s.mu.Unlock()
	s.wg.Wait()
	s.broker.subs.Remove(s)
	return nil
}

// The settler looks at the oldest held delivery all the time and, when there are more, at all of
// them from time to time: a message has no callback for its ack, and a goroutine for each would cost more.
const (
	scanFast = 500 * time.Microsecond // after a scan that found something
	scanSlow = 10 * time.Millisecond  // after several that found nothing
)

// subscription is one member of a group. One goroutine, run, feeds and settles it.
type subscription struct {
	topic  *topic
	group  *group
	window int
	out    chan *message.Message
	kick   chan struct{} // something to take or to settle; capacity 1

	turn    int  // where take begins; guarded by topic.mu
	waiting bool // take found nothing; guarded by topic.mu

	released atomic.Bool // some held delivery was released

	held  []*hold // in order of delivery, without those that were settled
	scan  time.Duration
	timer *time.Timer
	rings time.Time // when timer rings; zero: not set
}

// hold is one delivery that was not settled yet.
type hold struct {
	delivery brokers.Delivery
	sub      *subscription
	record   *record
	msg      *message.Message
	cancel   context.CancelFunc
	released atomic.Bool
	delay    atomic.Int64 // after a release: for so long nobody gets it
}

// wakeLocked needs topic.mu.
func (s *subscription) wakeLocked() {
	if s.waiting {
		s.waiting = false
		s.ring()
	}
}

func (s *subscription) ring() {
	select {
	case s.kick <- struct{}{}:
	default: // a kick is waiting already
	}
}

func (s *subscription) run(ctx context.Context) {
	var next *hold // taken, and not yet received by anybody
	s.timer = time.NewTimer(time.Hour)
	s.timer.Stop()
	s.scan = scanFast
	var scanAt time.Time
	for ctx.Err() == nil {
		var again time.Time
		if next == nil && len(s.held) < s.window {
			next, again = s.take(ctx)
		}
		var (
			out           chan<- *message.Message
			msg           *message.Message
			acked, nacked <-chan struct{}
		)
		if next != nil {
			out, msg = s.out, next.msg
		}
		if len(s.held) > 0 {
			acked, nacked = s.held[0].msg.Acked(), s.held[0].msg.Nacked()
		}
		if len(s.held) > 1 && scanAt.IsZero() {
			scanAt = time.Now().Add(s.scan)
		}
		s.setTimer(scanAt, again)
		select {
		case out <- msg:
			s.held = append(s.held, next)
			next = nil
		case <-acked:
			s.settleFront()
		case <-nacked:
			s.settleFront()
		case <-s.kick:
			if s.released.Swap(false) {
				s.settleAll(s.settle)
			}
		case <-s.timer.C:
			s.rings = time.Time{}
			if !scanAt.IsZero() && !time.Now().Before(scanAt) {
				scanAt = time.Time{}
				if s.settleAll(s.settle) {
					s.scan = scanFast
				} else {
					s.scan = min(2*s.scan, scanSlow)
				}
			}
		case <-ctx.Done():
		}
	}
	s.end(next)
}

// setTimer makes the timer ring at the earlier of the two times, or before it.
func (s *subscription) setTimer(a, b time.Time) {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		a = b
	}
	if a.IsZero() || !s.rings.IsZero() && !a.Before(s.rings) {
		return
	}
	s.rings = a
	s.timer.Reset(time.Until(a))
}

func (s *subscription) take(ctx context.Context) (*hold, time.Time) {
	r, count, again := s.topic.take(s)
	if r == nil {
		return nil, again
	}
	h := &hold{sub: s, record: r}
	h.delivery = brokers.Delivery{
		Topic:       s.topic.name,
		Incarnation: s.topic.incarnation,
		Partition:   r.partition,
		Offset:      r.offset,
		Key:         r.key,
		Time:        r.time,
		Count:       count,
		Release:     h.release,
		Delay:       h.delayFor,
	}
	// Copies, so that no consumer sees what another one, or an earlier attempt, did to the message.
	h.msg = message.NewMessage(r.uuid, bytes.Clone(r.payload))
	for k, v := range r.metadata {
		h.msg.Metadata[k] = v
	}
	ctx, h.cancel = context.WithCancel(ctx)
	h.msg.SetContext(brokers.WithDelivery(ctx, &h.delivery))
	return h, time.Time{}
}

func (h *hold) release() {
	h.released.Store(true)
	h.sub.released.Store(true)
	h.sub.ring()
}

func (h *hold) delayFor(d time.Duration) bool {
	h.delay.Store(int64(max(d, 1)))
	h.release()
	return true
}

// settleFront settles the oldest deliveries as far as they can be.
func (s *subscription) settleFront() {
	n := 0
	for n < len(s.held) && s.settle(s.held[n]) {
		s.held[n] = nil
		n++
	}
	s.held = s.held[n:]
}

// settleAll settles with settle whatever it can, and reports whether that was anything.
func (s *subscription) settleAll(settle func(*hold) bool) bool {
	kept := s.held[:0]
	for _, h := range s.held {
		if !settle(h) {
			kept = append(kept, h)
		}
	}
	settled := len(kept) < len(s.held)
	clear(s.held[len(kept):])
	s.held = kept
	return settled
}

// settle tells the topic what became of h, if that is decided.
func (s *subscription) settle(h *hold) bool {
	select {
	case <-h.msg.Acked():
		s.topic.done(s, h.record)
		h.cancel()
		return true
	case <-h.msg.Nacked():
		h.cancel()
		s.topic.giveBack(s, h.record, returned{count: h.delivery.Count, at: s.nackedUntil(h.delivery.Count)})
		return true
	default:
	}
	if h.released.Load() {
		h.cancel()
		if d := h.delay.Load(); d > 0 {
			at := time.Now().Add(time.Duration(d))
			s.topic.giveBack(s, h.record, returned{count: h.delivery.Count, at: at, delayed: true})
			return true
		}
		// Others may have it at once. To this subscription, which may be about to end, it must not
		// come back in a hot loop.
		s.topic.giveBack(s, h.record, returned{count: h.delivery.Count, at: s.releasedUntil(h.delivery.Count), by: s})
		return true
	}
	return false
}

// nackedUntil is when a message that was nacked after count deliveries may come again.
func (s *subscription) nackedUntil(count int) time.Time {
	if count <= 1 {
		return time.Time{}
	}
	return s.releasedUntil(count - 1)
}

func (s *subscription) releasedUntil(count int) time.Time {
	delay := time.Millisecond << min(count-1, 20)
	return time.Now().Add(min(delay, s.topic.config.MaxNackDelay))
}

// end settles what was decided, gives the rest back and leaves the group.
func (s *subscription) end(next *hold) {
	s.timer.Stop()
	if next != nil {
		next.cancel()
		s.topic.giveBack(s, next.record, returned{count: next.delivery.Count - 1})
	}
	s.settleAll(func(h *hold) bool {
		if !s.settle(h) {
			h.cancel()
			s.topic.giveBack(s, h.record, returned{count: h.delivery.Count})
		}
		return true
	})
	s.topic.leave(s)
	close(s.out)
}
