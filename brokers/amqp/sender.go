package amqp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// maxUnconfirmed bounds the messages of one channel that were sent and are not confirmed.
const maxUnconfirmed = 1024

var (
	// ErrUnroutable is what errors wrap if the server has found no queue for a message, which it has not stored.
	ErrUnroutable = errors.New("no queue is bound to get the message")

	// ErrRefused is what errors wrap if the server has answered that it has not stored a message, for instance since a queue is full.
	ErrRefused = errors.New("the server has refused the message")

	// ErrUnconfirmed is what errors wrap if it is not known whether the server has stored a message.
	ErrUnconfirmed = errors.New("the server has not confirmed the message")
)

// letter is a message on its way to an exchange.
type letter struct {
	exchange, key string
	content       amqp091.Publishing
}

// sender sends letters on one channel, which it opens when it needs one. All calls share the channel; nobody waits for the confirms of
// another's.
type sender struct {
	link *link
	turn chan struct{} // capacity 1: taken while writing, or opening; the letters of a call follow each other

	mu     sync.Mutex
	line   *line // nil: to be opened
	closed bool
}

func newSender(l *link) *sender { return &sender{link: l, turn: make(chan struct{}, 1)} }

// take takes the turn, which the caller gives back.
func (s *sender) take(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for other calls: %w", context.Cause(ctx))
	}
}

func (s *sender) giveBack() { <-s.turn }

// line is one channel in confirm mode.
type line struct {
	channel *amqp091.Channel
	slots   chan struct{} // one for each letter that is not confirmed
	lost    chan struct{} // closed when the channel is

	mu      sync.Mutex
	err     error // why it was lost
	next    uint64
	pending map[uint64]*sent
}

// call is one call of send. The line's mu guards it.
type call struct {
	errs []error
	left int
	done chan struct{} // closed when left is 0
}

// sent is a letter that is not confirmed.
type sent struct {
	call     *call
	index    int
	letter   *letter
	returned error
}

// send sends letters in order and waits until the server has confirmed each, or ctx ends. It returns an error, or nil, for each.
func (s *sender) send(ctx context.Context, letters []letter) []error {
	c := &call{errs: make([]error, len(letters)), left: len(letters), done: make(chan struct{})}
	if len(letters) == 0 {
		return nil
	}
	l, err := s.open(ctx)
	if err != nil {
		return fill(c.errs, err)
	}
	n, err := s.write(ctx, l, c, letters)
	l.mu.Lock()
	fill(c.errs[n:], err)
	c.settle(len(letters) - n)
	l.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	errs := c.errs
	if c.left > 0 {
		errs = make([]error, len(letters)) // the line still has the others
		copy(errs, c.errs)
		for _, p := range l.pending {
			if p.call == c {
				errs[p.index] = fmt.Errorf("%w: %w", ErrUnconfirmed, context.Cause(ctx))
			}
		}
	}
	return errs
}

// write writes letters to l, and returns of how many the line knows the outcome or will, with an error if not of all.
func (s *sender) write(ctx context.Context, l *line, c *call, letters []letter) (int, error) {
	if err := s.take(ctx); err != nil {
		return 0, err
	}
	defer s.giveBack()
	for i := range letters {
		if err := s.link.waitUnblocked(ctx); err != nil {
			return i, err
		}
		select {
		case l.slots <- struct{}{}:
		case <-l.lost:
			return i, l.reason()
		case <-ctx.Done():
			s.drop(l)
			return i, fmt.Errorf("%d messages wait for their confirms: %w", maxUnconfirmed, context.Cause(ctx))
		}
		m := &letters[i]
		seq := l.expect(&sent{call: c, index: i, letter: m})
		if err := l.channel.Publish(m.exchange, m.key, true, false, m.content); err != nil {
			if !l.unexpect(seq) {
				i++ // the line was lost meanwhile, which has settled this one
			}
			return i, err // it was not written, or in part: then the client ends the connection
		}
	}
	return len(letters), nil
}

// open returns the line. Without one it tries until ctx ends.
func (s *sender) open(ctx context.Context) (*line, error) {
	var l *line
	retry := backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstDelay), backoff.WithMaxInterval(maxDelay), backoff.WithMaxElapsedTime(0))
	var last error
	err := backoff.Retry(func() error {
		var err error
		if l, err = s.tryOpen(ctx); err != nil {
			if ctx.Err() == nil {
				last = err
			}
			if errors.Is(err, ErrClosed) || isAccess(err) {
				return backoff.Permanent(err)
			}
		}
		return err
	}, backoff.WithContext(retry, ctx))
	if err != nil && last != nil && !errors.Is(err, last) {
		err = fmt.Errorf("%w: %w", last, err)
	}
	return l, err
}

func (s *sender) tryOpen(ctx context.Context) (*line, error) {
	if l, err := s.present(); l != nil || err != nil {
		return l, err
	}
	var opened atomic.Pointer[line]
	err := s.link.do(ctx, func() error {
		if err := s.take(ctx); err != nil {
			return err
		}
		defer s.giveBack()
		l, err := s.present() // another call may have opened it
		if l == nil && err == nil {
			l, err = s.newLine(ctx)
		}
		opened.Store(l)
		return err
	})
	if err != nil {
		return nil, err
	}
	return opened.Load(), nil
}

// drop has the next call open another line: one queue that confirms nothing must not hold up the others for ever. Of what waits on the
// old one it is not known any more whether it is stored.
func (s *sender) drop(l *line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line == l {
		s.line = nil
		_ = s.link.start(func() { _ = l.channel.Close() }) // or the link is closed
	}
}

// present returns the line, nil if there is none.
func (s *sender) present() (*line, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, ErrClosed
	case s.line == nil || s.line.isLost():
		return nil, nil
	}
	return s.line, nil
}

func (s *sender) newLine(ctx context.Context) (*line, error) {
	ch, err := s.link.channel(ctx)
	if err != nil {
		return nil, err
	}
	l := &line{
		channel: ch,
		slots:   make(chan struct{}, maxUnconfirmed),
		lost:    make(chan struct{}),
		pending: make(map[uint64]*sent),
	}
	// There is room for all that can be on its way: the client drops what is not taken within 5 s, and a message whose return was
	// dropped would be taken for stored.
	returns := ch.NotifyReturn(make(chan amqp091.Return, maxUnconfirmed))
	confirms := ch.NotifyPublish(make(chan amqp091.Confirmation, maxUnconfirmed))
	closes := ch.NotifyClose(make(chan *amqp091.Error, 1))
	if err := ch.Confirm(false); err != nil {
		_ = ch.Close()
		return nil, fmt.Errorf("confirm mode: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.link.start(func() { l.listen(returns, confirms, closes) }) {
		_ = ch.Close()
		return nil, ErrClosed
	}
	s.line = l
	return l, nil
}

// close ends the channel. What is not confirmed fails. If the server does not answer, the end of the link does the rest. It is idempotent.
func (s *sender) close() {
	s.mu.Lock()
	l := s.line
	s.closed, s.line = true, nil
	s.mu.Unlock()
	if l == nil || l.isLost() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.link.config.CloseTimeout)
	defer cancel()
	if err := s.link.do(ctx, l.channel.Close); err != nil && !errors.Is(err, amqp091.ErrClosed) {
		s.link.config.Logger.Warn("amqp: could not close a publisher's channel; the end of its connection does", "error", err)
	}
}

// listen takes the server's answers until the channel is closed.
func (l *line) listen(returns <-chan amqp091.Return, confirms <-chan amqp091.Confirmation, closes <-chan *amqp091.Error) {
	for c := range confirms {
		l.takeReturns(returns) // a message's own comes before its confirm, and is there by now
		l.confirmed(c)
	}
	reason := amqp091.ErrClosed
	if e := <-closes; e != nil { // closed by now
		reason = e
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = fmt.Errorf("the channel was closed: %w", reason)
	for seq, p := range l.pending {
		delete(l.pending, seq)
		p.call.errs[p.index] = fmt.Errorf("%w: %w", ErrUnconfirmed, l.err)
		p.call.settle(1)
	}
	close(l.lost)
}

// takeReturns takes the returns that are there.
func (l *line) takeReturns(returns <-chan amqp091.Return) {
	for {
		select {
		case r, open := <-returns:
			if !open {
				return
			}
			l.returned(r)
		default:
			return
		}
	}
}

// expect notes that p is the next to be written.
func (l *line) expect(p *sent) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	l.pending[l.next] = p
	return l.next
}

// unexpect takes back the last expect. It returns false if the letter has an outcome.
func (l *line) unexpect(seq uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending[seq] == nil {
		return false
	}
	delete(l.pending, seq)
	l.next--
	<-l.slots
	return true
}

func (l *line) confirmed(c amqp091.Confirmation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pending[c.DeliveryTag]
	if p == nil {
		return
	}
	delete(l.pending, c.DeliveryTag)
	<-l.slots
	switch {
	case p.returned != nil:
		p.call.errs[p.index] = p.returned
	case !c.Ack:
		p.call.errs[p.index] = ErrRefused
	}
	p.call.settle(1)
}

// returned marks what came back. A return does not say which of several equal messages it is: then it is all of them, since none of them
// may be taken for stored that is not.
func (l *line) returned(r amqp091.Return) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.pending {
		m := p.letter
		if m.exchange == r.Exchange && m.key == r.RoutingKey && m.content.MessageId == r.MessageId && len(m.content.Body) == len(r.Body) {
			p.returned = fmt.Errorf("%w: exchange %q, routing key %q: %s", ErrUnroutable, r.Exchange, r.RoutingKey, r.ReplyText)
		}
	}
}

func (l *line) isLost() bool {
	select {
	case <-l.lost:
		return true
	default:
		return l.channel.IsClosed()
	}
}

func (l *line) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// settle notes that n letters more have their outcome.
func (c *call) settle(n int) {
	c.left -= n
	if n > 0 && c.left == 0 {
		close(c.done)
	}
}

func fill(errs []error, err error) []error {
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// The delays between tries while the server cannot be reached.
const firstDelay, maxDelay = 50 * time.Millisecond, 2 * time.Second

// isAccess tells whether the server knows us and says no: another try does not help soon.
func isAccess(err error) bool {
	e, ok := errors.AsType[*amqp091.Error](err)
	return ok && (e.Code == amqp091.AccessRefused || e.Code == amqp091.NotAllowed)
}
