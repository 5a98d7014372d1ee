package adapter

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
)

// Publishers are the publishers that a broker has opened. It is safe for concurrent use.
type Publishers struct {
	System string // begins the errors

	// Unbounded says that a call lasts for as long as its context and the application's client allow: then Close does not wait for
	// those that run.
	Unbounded bool

	members Members[*publisher]
}

// New returns a publisher whose calls go to send until it is closed. end, if any, is called by its Close, after the last call. It refuses
// with [ErrClosed] after Close.
func (s *Publishers) New(send func(topic string, messages []*message.Message) error, end func()) (message.Publisher, error) {
	p := &publisher{all: s, send: send, end: end}
	if err := s.members.Add(p); err != nil {
		return nil, fmt.Errorf("%s: publisher: broker: %w", s.System, err)
	}
	return p, nil
}

// Close makes further calls of Publish fail, and waits for those that run unless they are unbounded. It is idempotent.
func (s *Publishers) Close() error { return s.members.Close() }

type publisher struct {
	all   *Publishers
	send  func(topic string, messages []*message.Message) error
	end   func()
	calls Calls
}

// Publish is described at the Publisher of each broker.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if err := p.calls.Begin(); err != nil {
		closed := "publisher"
		if p.all.members.Closed() {
			closed = "broker"
		}
		return fmt.Errorf("%s: publish to topic %q: %s: %w", p.all.System, topic, closed, err)
	}
	defer p.calls.Done()
	return p.send(topic, messages)
}

// Close makes further calls of Publish fail, and waits for those that run unless they are unbounded. It is idempotent.
func (p *publisher) Close() error {
	p.calls.Refuse()
	if !p.all.Unbounded {
		p.calls.Close()
	}
	if p.end != nil {
		p.end()
	}
	p.all.members.Remove(p)
	return nil
}

// CheckCall says what is wrong with a call of Publish whatever the broker is, which another try cannot mend.
func CheckCall(system, topic string, messages []*message.Message) error {
	if topic == "" {
		return classify.Permanent(fmt.Errorf("%s: publish to topic %q: it is empty", system, topic))
	}
	for i, m := range messages {
		if m == nil {
			return classify.Permanent(fmt.Errorf("%s: publish to topic %q: message %d is nil", system, topic, i))
		}
	}
	return nil
}
