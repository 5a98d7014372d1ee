package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/integration/bench/internal/pace"
)

var memorySystem = system{"memory", "", 100_000, []subject{
	{stock, "watermill gochannel", 100_000, func(ctx context.Context, _ string, n int) (topic, error) {
		name, channel := topicName(), gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
		return topic{
			run:    func(ctx context.Context, l *pace.Load) error { return onRouter(ctx, l, name, channel) },
			remove: channel.Close,
		}, fill(ctx, channel, name, n)
	}},
	{headrace, "headrace", window, func(ctx context.Context, _ string, n int) (topic, error) {
		name := topicName()
		broker, err := memory.New(memory.Config{MaxMessages: n, History: memory.NoHistory})
		if err != nil {
			return topic{}, err
		}
		if err := fillBroker(ctx, broker, name, n); err != nil {
			return topic{}, errors.Join(err, broker.Close())
		}
		return topic{
			run:    func(ctx context.Context, l *pace.Load) error { return onRuntime(ctx, l, name, broker) },
			remove: broker.Close,
		}, nil
	}},
}}
