package amqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// session is a subscription on one channel. Delivery tags are the channel's, so all that settles them ends with it. One goroutine, run,
// hands over; the settler's acks; others give back what was held back, and send on what is delayed.
type session struct {
	subscription *subscription
	channel      *amqp091.Channel
	closes       <-chan *amqp091.Error
	deliveries   <-chan amqp091.Delivery
	settler      *adapter.Settler[*entry]

	active atomic.Bool  // something was delivered
	ready  atomic.Int64 // in the queue, not delivered, when it was last asked; -1: not known

	mu      sync.Mutex // also held while settling, so that the server gets what tags believes
	tags    tags
	back    []returning // held back, in the order of their time
	delayed []returning // to be sent through the levels of delay

	moreBack, moreDelayed chan struct{} // capacity 1
}

// entry is a delivery as it came.
type entry struct {
	delivery amqp091.Delivery
	count    int
}

// returning is an entry that goes back at a time, or is sent on with a delay.
type returning struct {
	entry *entry
	at    time.Time
	// inTurn is until when it does not go back before those that were delivered before it.
	inTurn time.Time
	delay  time.Duration
}

func newSession(n *subscription, ch *amqp091.Channel, closes <-chan *amqp091.Error, deliveries <-chan amqp091.Delivery) *session {
	s := &session{
		subscription: n,
		channel:      ch,
		closes:       closes,
		deliveries:   deliveries,
		moreBack:     make(chan struct{}, 1),
		moreDelayed:  make(chan struct{}, 1),
	}
	s.ready.Store(-1)
	s.settler = adapter.NewSettler(n.window, s.settle)
	s.settler.Delays = n.broker.config.Topology == Declare
	return s
}

// run returns when ctx has ended, or with an error when the channel was lost. Letters are sent until their context ends.
func (s *session) run(ctx, letters context.Context) error {
	work, cancel := context.WithCancelCause(ctx)
	var others sync.WaitGroup
	others.Go(func() { s.giveBack(work) })
	others.Go(func() { s.sendDelayed(work, letters) })
	others.Go(func() { s.measure(work) })
	err := s.receive(work)
	if err != nil {
		cancel(fmt.Errorf("%w: %w", ErrLost, err))
	}
	cancel(nil)
	others.Wait()
	s.end(letters)
	return err
}

// end settles what was decided, and closes the channel: the server takes the rest back, in order.
func (s *session) end(letters context.Context) {
	s.settler.Close()
	if batch := s.takeDelayed(); len(batch) > 0 && !s.channel.IsClosed() {
		s.sendLetters(letters, batch)
	}
	_ = s.channel.Close() // an error says that it is closed
}

// receive hands over what comes.
func (s *session) receive(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-s.closes:
			return closeReason(e)
		case d, open := <-s.deliveries:
			if !open {
				return s.consumerEnded()
			}
			if s.channel.IsClosed() { // d is the server's again
				return s.consumerEnded()
			}
			if err := s.handOver(ctx, d); err != nil {
				return err
			}
		}
	}
}

// consumerEnded says why no more deliveries come: the channel was closed, or the server has cancelled the consumer.
func (s *session) consumerEnded() error {
	if s.channel.IsClosed() {
		return closeReason(<-s.closes) // it comes, or is closed
	}
	return errors.New("the server has cancelled the consumer: its queue was deleted, or is not available")
}

func closeReason(e *amqp091.Error) error {
	if e == nil {
		return amqp091.ErrClosed
	}
	return e
}

func (s *session) handOver(ctx context.Context, d amqp091.Delivery) error {
	s.active.Store(true)
	before, left := undelay(&d)
	e := &entry{delivery: d, count: deliveries(&d) + before}
	if left > 0 { // it was longer than the levels last
		e.count--
		s.delay(e, left)
		return nil
	}
	m, headers, err := decode(&e.delivery)
	if s.settler.Delays {
		m.Payload = slices.Clone(m.Payload) // a handler may change it, and a delay sends what came
	}
	s.settler.Hold(ctx, m, brokers.Delivery{
		Topic:       s.subscription.topic,
		Partition:   -1,
		Offset:      -1,
		Time:        d.Timestamp,
		Count:       e.count,
		Headers:     headers,
		DecodeError: err,
	}, e)
	select {
	case s.subscription.out <- m:
		return nil
	case <-ctx.Done():
		return nil
	case c := <-s.closes:
		return closeReason(c)
	}
}

// settle is the settler's.
func (s *session) settle(batch []*adapter.Held[*entry]) {
	config := &s.subscription.broker.config
	acked := make([]uint64, 0, len(batch))
	for _, h := range batch {
		e := h.Entry
		switch {
		case h.Outcome == adapter.Acked:
			acked = append(acked, e.delivery.DeliveryTag)
		case h.Outcome == adapter.Nacked:
			s.holdBack(e, adapter.NackDelay(config.NackDelay, config.MaxNackDelay, e.count), 0)
		case h.Delay() > 0:
			s.delay(e, h.Delay())
		default:
			s.holdBack(e, config.NackDelay, config.MaxNackDelay)
		}
	}
	s.ack(acked)
}

// ack acks a batch of tags, with as few words as possible.
func (s *session) ack(batch []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	upTo, rest := s.tags.ack(batch)
	if len(s.back) > 0 {
		ring(s.moreBack)
	}
	var err error
	if upTo > 0 {
		err = s.channel.Ack(upTo, true)
	}
	for _, tag := range rest {
		if err != nil {
			break
		}
		err = s.channel.Ack(tag, false)
	}
	if err != nil {
		s.subscription.log.Warn("amqp: acks could not be sent; the messages come again", "error", err, "acks", len(batch))
	}
}

// holdBack keeps an entry un-acked for some time, so that nobody makes the server deliver it as fast as it can. For inTurn more it does not
// go back before what was delivered before it: the server puts what comes back behind what came back earlier. A consumer
// that stops releases the rest of a key only behind its running message, and newer ones at once.
func (s *session) holdBack(e *entry, pause, inTurn time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Now().Add(pause)
	s.back = append(s.back, returning{entry: e, at: at, inTurn: at.Add(inTurn)})
	slices.SortStableFunc(s.back, func(a, b returning) int { return a.at.Compare(b.at) })
	ring(s.moreBack)
}

func (s *session) delay(e *entry, delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delayed = append(s.delayed, returning{entry: e, delay: delay})
	ring(s.moreDelayed)
}

// giveBack requeues what was held back, when it is time.
func (s *session) giveBack(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(s.requeueDue(time.Now()))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.moreBack:
		}
	}
}

// requeueDue requeues what is due, and returns how long it is until more is.
func (s *session) requeueDue(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for n < len(s.back) && !now.Before(s.back[n].at) {
		n++
	}
	due := slices.Clone(s.back[:n])
	slices.SortFunc(due, func(a, b returning) int {
		return cmp.Compare(a.entry.delivery.DeliveryTag, b.entry.delivery.DeliveryTag)
	})
	var wait []returning
	for _, r := range due {
		tag := r.entry.delivery.DeliveryTag
		if now.Before(r.inTurn) && tag != s.tags.low+1 {
			wait = append(wait, r)
			continue
		}
		if err := s.channel.Nack(tag, false, true); err != nil {
			s.subscription.log.Debug("amqp: the channel is closed, which gives back as well", "error", err)
			break
		}
		s.tags.settle(tag)
	}
	next := time.Hour
	if n < len(s.back) {
		next = s.back[n].at.Sub(now)
	}
	for _, r := range wait { // or until an ack makes it their turn
		next = min(next, r.inTurn.Sub(now))
	}
	s.back = slices.Concat(wait, s.back[n:])
	slices.SortStableFunc(s.back, func(a, b returning) int { return a.at.Compare(b.at) })
	return next
}

// sendDelayed sends on what is to be delayed, and acks it when the server has it.
func (s *session) sendDelayed(ctx, letters context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.moreDelayed:
		}
		failed := s.sendLetters(letters, s.takeDelayed())
		if len(failed) == 0 {
			continue
		}
		s.mu.Lock()
		s.delayed = append(failed, s.delayed...)
		s.mu.Unlock()
		if !sleep(ctx, maxDelay) {
			return
		}
		ring(s.moreDelayed)
	}
}

func (s *session) takeDelayed() []returning {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch := s.delayed
	s.delayed = nil
	return batch
}

// sendLetters returns what could not be sent. ctx is not the session's, whose end does not end it: what was sent and not acked would come
// twice.
func (s *session) sendLetters(ctx context.Context, batch []returning) (failed []returning) {
	n, config := s.subscription, &s.subscription.broker.config
	ctx, cancel := context.WithTimeout(ctx, min(config.PublishTimeout, config.CloseTimeout))
	defer cancel()
	letters := make([]letter, 0, len(batch))
	sent := batch[:0]
	top := 0
	for _, r := range batch {
		l, level := delayLetter(&r.entry.delivery, n.queue, r.entry.count, r.delay)
		if size, most := len(appendField(nil, l.content.Headers)), n.broker.publishing.frameSize()-frameReserve/2; size > most {
			n.log.Warn("amqp: a message cannot be delayed as long as it should be, since its headers leave no room for it",
				"message", r.entry.delivery.MessageId, "bytes", size, "most", most)
			s.holdBack(r.entry, min(r.delay, config.MaxNackDelay), 0)
			continue
		}
		letters, sent, top = append(letters, l), append(sent, r), max(top, level)
	}
	var errs []error
	if err := n.broker.declareDelays(ctx, top); err != nil {
		errs = fill(make([]error, len(letters)), err)
	} else {
		errs = n.broker.internal.send(ctx, letters)
	}
	var acked []uint64
	for i, r := range sent {
		if errs[i] == nil {
			acked = append(acked, r.entry.delivery.DeliveryTag)
		} else {
			failed = append(failed, r)
		}
	}
	s.ack(acked)
	if len(failed) > 0 {
		n.broker.forgetDelays()
		n.log.Warn("amqp: messages could not be delayed; tries again", "error", firstOf(errs), "messages", len(failed))
	}
	return failed
}

func firstOf(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// unsettled is how many deliveries are held, handed over or not.
func (s *session) unsettled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settler.Len() + len(s.back) + len(s.delayed)
}

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default: // it rings already
	}
}

// sleep returns false if ctx ended before.
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
