package amqp

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
	"github.com/headrace-go/headrace/classify"
)

// publish is what [Broker.Publisher] describes, on the channel of one publisher.
func (b *Broker) publish(to *sender, topic string, messages []*message.Message) error {
	if err := adapter.CheckCall("amqp", topic, messages); err != nil {
		return err
	}
	if err := checkTopic(topic); err != nil {
		return classify.Permanent(fmt.Errorf("amqp: publish: %w", err))
	}
	if len(messages) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(messages[0].Context(), b.config.PublishTimeout)
	defer cancel()
	err := brokers.NewPublishError("amqp", topic, messages, b.send(ctx, to, topic, messages))
	if err != nil {
		b.forgetTopic(topic) // it may have been deleted
	}
	return err
}

// send returns an error, or nil, for each message.
func (b *Broker) send(ctx context.Context, to *sender, topic string, messages []*message.Message) []error {
	errs := make([]error, len(messages))
	// Connecting is the sender's, and goes on until ctx ends; then the exchange is made, on the same connection.
	if _, err := to.open(ctx); err != nil {
		return fill(errs, err)
	}
	if err := b.ensureTopic(ctx, topic); err != nil {
		return fill(errs, err)
	}
	letters := make([]letter, 0, len(messages))
	index := make([]int, 0, len(messages))
	for i, m := range messages {
		l, err := b.letter(topic, m)
		if err != nil {
			errs[i] = classify.Permanent(err)
			continue
		}
		letters, index = append(letters, l), append(index, i)
	}
	for i, err := range to.send(ctx, letters) {
		errs[index[i]] = err
	}
	return errs
}

func (b *Broker) letter(topic string, m *message.Message) (letter, error) {
	key := b.config.RoutingKey(topic, m)
	if len(key) > maxName {
		return letter{}, fmt.Errorf("its routing key has %d bytes: want at most %d", len(key), maxName)
	}
	content, err := encode(m, b.config.MaxMessageBytes, b.publishing.frameSize())
	return letter{exchange: topic, key: key, content: content}, err
}
