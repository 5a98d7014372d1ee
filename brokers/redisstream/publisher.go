package redisstream

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/classify"
)

// maxBatch bounds the messages of one transaction.
const maxBatch = 256

type publisher struct {
	broker *Broker
	closed atomic.Bool
}

// Publish adds the messages in order. See [Broker.Publisher].
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	switch {
	case topic == "":
		return classify.Permanent(errors.New("redisstream: publish: the topic is empty"))
	case p.closed.Load():
		return fmt.Errorf("redisstream: publish to %s: publisher: %w", topic, ErrClosed)
	case p.broker.subs.Closed():
		return fmt.Errorf("redisstream: publish to %s: broker: %w", topic, ErrClosed)
	}
	for i, m := range messages {
		if m == nil {
			return classify.Permanent(fmt.Errorf("redisstream: publish to %s: message %d is nil", topic, i))
		}
	}
	for batch := range slices.Chunk(messages, maxBatch) {
		if err := p.add(topic, batch); err != nil {
			return err
		}
	}
	return nil
}

// add adds all of a batch or nothing of it: a later message of a key is never stored without the ones before it.
func (p *publisher) add(topic string, batch []*message.Message) error {
	ctx := batch[0].Context()
	_, err := p.broker.config.Client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, m := range batch {
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: encode(m)})
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("redisstream: publish %d messages from %q on to %s: %w", len(batch), batch[0].UUID, topic, err)
	}
	return nil
}

// Close makes later calls of Publish fail. It is idempotent.
func (p *publisher) Close() error {
	p.closed.Store(true)
	return nil
}
