package amqp

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
)

// PublishError tells which messages of a call of Publish were not stored. The others were.
type PublishError struct {
	Topic  string
	Of     int             // messages in the call
	Failed []FailedMessage // in the order of the call, at least one
}

// FailedMessage is a message that was not stored, or of which that is not known.
type FailedMessage struct {
	Index int    // in the call
	UUID  string // Watermill's, may be empty
	Err   error  // wraps ErrUnroutable, ErrRefused, ErrUnconfirmed, ErrBlocked, ...; marked permanent where another try cannot help
}

func (e *PublishError) Error() string {
	f := e.Failed[0]
	s := fmt.Sprintf("amqp: publish message %q (%d of %d) to topic %q: %v", f.UUID, f.Index+1, e.Of, e.Topic, f.Err)
	if more := len(e.Failed) - 1; more > 0 {
		s += fmt.Sprintf(" (and %d more)", more)
	}
	return s
}

// Unwrap returns the errors of the messages.
func (e *PublishError) Unwrap() []error {
	errs := make([]error, len(e.Failed))
	for i, f := range e.Failed {
		errs[i] = f.Err
	}
	return errs
}

type publisher struct {
	broker *Broker
	sender *sender

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // calls of Publish
}

// Publish is described at [Broker.Publisher].
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if err := p.begin(); err != nil {
		return fmt.Errorf("amqp: publish to topic %q: %w", topic, err)
	}
	defer p.running.Done()
	for i, m := range messages {
		if m == nil {
			return classify.Permanent(fmt.Errorf("amqp: publish to topic %q: message %d is nil", topic, i))
		}
	}
	if err := checkTopic(topic); err != nil {
		return classify.Permanent(fmt.Errorf("amqp: publish: %w", err))
	}
	if len(messages) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(messages[0].Context(), p.broker.config.PublishTimeout)
	defer cancel()
	errs := p.send(ctx, topic, messages)
	failed := &PublishError{Topic: topic, Of: len(messages)}
	for i, err := range errs {
		if err != nil {
			failed.Failed = append(failed.Failed, FailedMessage{Index: i, UUID: messages[i].UUID, Err: err})
		}
	}
	if len(failed.Failed) == 0 {
		return nil
	}
	p.broker.forgetTopic(topic) // it may have been deleted
	return failed
}

// send returns an error, or nil, for each message.
func (p *publisher) send(ctx context.Context, topic string, messages []*message.Message) []error {
	errs := make([]error, len(messages))
	// Connecting is the sender's, and goes on until ctx ends; then the exchange is made, on the same connection.
	if _, err := p.sender.open(ctx); err != nil {
		return fill(errs, err)
	}
	if err := p.broker.ensureTopic(ctx, topic); err != nil {
		return fill(errs, err)
	}
	letters := make([]letter, 0, len(messages))
	index := make([]int, 0, len(messages))
	for i, m := range messages {
		l, err := p.letter(topic, m)
		if err != nil {
			errs[i] = classify.Permanent(err)
			continue
		}
		letters, index = append(letters, l), append(index, i)
	}
	for i, err := range p.sender.send(ctx, letters) {
		errs[index[i]] = err
	}
	return errs
}

func (p *publisher) letter(topic string, m *message.Message) (letter, error) {
	key := p.broker.config.RoutingKey(topic, m)
	if len(key) > maxName {
		return letter{}, fmt.Errorf("its routing key has %d bytes: want at most %d", len(key), maxName)
	}
	content, err := encode(m, p.broker.config.MaxMessageBytes, p.broker.publishing.frameSize())
	return letter{exchange: topic, key: key, content: content}, err
}

// begin notes a call, unless the publisher is closed.
func (p *publisher) begin() error {
	if p.broker.pubs.Closed() {
		return fmt.Errorf("broker: %w", ErrClosed)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("publisher: %w", ErrClosed)
	}
	p.running.Add(1)
	return nil
}

// Close makes further calls of Publish fail, and waits for those that run. It is idempotent.
func (p *publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.running.Wait()
	p.sender.close()
	p.broker.pubs.Remove(p)
	return nil
}
