package amqp

import (
	"errors"
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
