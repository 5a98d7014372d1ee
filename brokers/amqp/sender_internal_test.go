package amqp

import (
	"errors"
	"strconv"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A channel is lost in the midst of a call: each letter has its outcome once, whoever gives it, and the call ends.
func TestEachLetterOfALostChannelHasOneOutcome(t *testing.T) {
	for _, lostFirst := range []bool{false, true} {
		l := &line{slots: make(chan struct{}, 8), lost: make(chan struct{}), pending: map[uint64]*sent{}}
		c := &call{errs: make([]error, 3), left: 3, done: make(chan struct{})}
		for i := range 2 {
			l.slots <- struct{}{}
			l.expect(&sent{call: c, index: i, letter: &letter{}})
		}
		confirms, closes := make(chan amqp091.Confirmation, 1), make(chan *amqp091.Error, 1)
		confirms <- amqp091.Confirmation{DeliveryTag: 1, Ack: true}
		close(confirms)
		closes <- amqp091.ErrClosed
		written := 2
		if lostFirst { // between expect and the write of the second
			l.listen(nil, confirms, closes)
			if l.unexpect(2) {
				t.Error("a letter with an outcome was taken back")
			}
		} else {
			if !l.unexpect(2) {
				t.Error("a letter without an outcome was not taken back")
			}
			written = 1
			l.listen(nil, confirms, closes)
		}
		fill(c.errs[written:], amqp091.ErrClosed)
		c.settle(3 - written)
		select {
		case <-c.done:
		default:
			t.Errorf("lost first: %v: %d letters have no outcome", lostFirst, c.left)
		}
		if c.errs[0] != nil || !errors.Is(c.errs[1], amqp091.ErrClosed) || errors.Is(c.errs[1], ErrUnconfirmed) != lostFirst || c.errs[2] == nil {
			t.Errorf("lost first: %v: errors %v", lostFirst, c.errs)
		}
	}
}

// A confirm was read before the return of the same message, which no queue had got: it was taken for stored.
func TestReturnCountsBeforeItsConfirm(t *testing.T) {
	const n = 64
	l := &line{slots: make(chan struct{}, n), lost: make(chan struct{}), pending: map[uint64]*sent{}}
	c := &call{errs: make([]error, n), left: n, done: make(chan struct{})}
	returns, confirms, closes := make(chan amqp091.Return, n), make(chan amqp091.Confirmation, n), make(chan *amqp091.Error)
	for i := range n {
		id := strconv.Itoa(i)
		l.slots <- struct{}{}
		tag := l.expect(&sent{call: c, index: i, letter: &letter{content: amqp091.Publishing{MessageId: id}}})
		returns <- amqp091.Return{MessageId: id}
		confirms <- amqp091.Confirmation{DeliveryTag: tag, Ack: true}
	}
	close(returns)
	close(confirms)
	close(closes)
	l.listen(returns, confirms, closes)
	for i, err := range c.errs {
		if !errors.Is(err, ErrUnroutable) {
			t.Errorf("message %d: %v, want %v", i, err, ErrUnroutable)
		}
	}
}
