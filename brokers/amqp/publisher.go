package amqp

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
	"github.com/headrace-go/headrace/classify"
)

type publisher struct {
	broker *Broker
	sender *sender
	calls  adapter.Calls
}

// Publish is described at [Broker.Publisher].
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if err := p.begin(); err != nil {
		return fmt.Errorf("amqp: publish to topic %q: %w", topic, err)
	}
	defer p.calls.Done()
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
	err := brokers.NewPublishError("amqp", topic, messages, errs)
	if err != nil {
		p.broker.forgetTopic(topic) // it may have been deleted
	}
	return err
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
	if err := p.calls.Begin(); err != nil {
		return fmt.Errorf("publisher: %w", err)
	}
	return nil
}

// Close makes further calls of Publish fail, and waits for those that run. It is idempotent.
func (p *publisher) Close() error {
	p.calls.Close()
	p.sender.close()
	p.broker.pubs.Remove(p)
	return nil
}
