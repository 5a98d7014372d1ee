package redisstream

import (
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// maxBatch bounds the messages of one transaction.
const maxBatch = 256

// publish is what [Broker.Publisher] describes.
func (b *Broker) publish(topic string, messages []*message.Message) error {
	if err := adapter.CheckCall("redisstream", topic, messages); err != nil {
		return err
	}
	for batch := range slices.Chunk(messages, maxBatch) {
		if err := b.add(topic, batch); err != nil {
			return err
		}
	}
	return nil
}

// add adds all of a batch or nothing of it: a later message of a key is never stored without the ones before it.
func (b *Broker) add(topic string, batch []*message.Message) error {
	ctx := batch[0].Context()
	_, err := b.config.Client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
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
