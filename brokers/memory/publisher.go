package memory

import (
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
)

type publisher struct {
	broker *Broker
	closed atomic.Bool
}

// Publish stores copies of all messages, or none of them. It does not block.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if p.closed.Load() {
		return fmt.Errorf("memory: publish to topic %q: publisher: %w", topic, ErrClosed)
	}
	for i, m := range messages {
		if m == nil {
			return fmt.Errorf("memory: publish to topic %q: message %d is nil", topic, i)
		}
	}
	t, err := p.broker.topic(topic)
	if err != nil {
		return err
	}
	return t.add(messages)
}

// Close makes further calls of Publish fail. It is idempotent.
func (p *publisher) Close() error {
	p.closed.Store(true)
	return nil
}
