package jetstream

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/brokers"
)

var _ brokers.Registrar = (*Broker)(nil)

// Register makes the stream of topic, and the durables of consumers where the stream needs them before the first message: one with interest
// retention drops what no durable is there for, and a work queue has place for one consumer. Other streams keep what a later consumer
// reads. It is idempotent, and with [Config.CheckOnly] it only looks.
func (b *Broker) Register(ctx context.Context, topic string, consumers ...string) error {
	stream, err := b.provision(ctx, topic)
	if err != nil {
		return err
	}
	if stream.CachedInfo().Config.Retention == jetstream.LimitsPolicy {
		return nil
	}
	for _, consumer := range consumers {
		if err := b.register(ctx, stream, topic, consumer); err != nil {
			return err
		}
	}
	return nil
}

// register makes a durable, and leaves one that is there to whoever subscribes, who may be another process.
func (b *Broker) register(ctx context.Context, stream jetstream.Stream, topic, consumer string) error {
	name, err := durableName(stream.CachedInfo().Config, consumer, topic)
	if err != nil {
		return err
	}
	_, err = stream.Consumer(ctx, name)
	if err == nil {
		return nil
	}
	if !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("jetstream: find durable %q of stream %q: %w", name, stream.CachedInfo().Config.Name, err)
	}
	_, err = b.durable(ctx, stream, consumer, topic, b.config.Window)
	return err
}
