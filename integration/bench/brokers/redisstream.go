package main

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stockredis "github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/brokers/redisstream"
	"github.com/headrace-go/headrace/integration/bench/internal/pace"
)

var redisSystem = system{"redisstream", "HEADRACE_REDIS_URL", 100_000, []subject{
	{raw, "go-redis", 1, onRedis(rawRedis)},
	{stock, "watermill-redisstream", 1, onRedis(func(ctx context.Context, l *pace.Load, name string, client *redis.Client) error {
		sub, err := stockredis.NewSubscriber(stockredis.SubscriberConfig{
			Client: redis.NewClient(client.Options()), // of its own: it closes it
			// Ours has the metadata elsewhere; the payload is at the same place.
			ConsumerGroup: "stock",
		}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		return onRouter(ctx, l, name, sub)
	})},
	{headrace, "headrace", window, onRedis(func(ctx context.Context, l *pace.Load, name string, client *redis.Client) error {
		broker, err := redisstream.New(redisstream.Config{Client: client})
		if err != nil {
			return err
		}
		return errors.Join(onRuntime(ctx, l, name, broker), broker.Close())
	})},
}}

func rawRedis(ctx context.Context, l *pace.Load, name string, client *redis.Client) error {
	if err := client.XGroupCreate(ctx, name, "raw", "0").Err(); err != nil {
		return err
	}
	for ctx.Err() == nil {
		streams, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: "raw", Consumer: "raw", Streams: []string{name, ">"}, Count: window, Block: 250 * time.Millisecond,
		}).Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return err
		}
		ids := make([]string, 0, window)
		for _, m := range streams[0].Messages {
			select {
			case <-ctx.Done():
				return nil
			default:
			}
			l.Handle()
			ids = append(ids, m.ID)
		}
		if err := client.XAck(ctx, name, "raw", ids...).Err(); err != nil {
			return err
		}
	}
	return nil
}

// onRedis makes streams, and deletes them.
func onRedis(run func(ctx context.Context, l *pace.Load, name string, client *redis.Client) error) func(context.Context, string, int) (topic, error) {
	return func(ctx context.Context, address string, n int) (topic, error) {
		options, err := redis.ParseURL(address)
		if err != nil {
			return topic{}, err
		}
		name, client := topicName(), redis.NewClient(options)
		remove := func() error {
			return errors.Join(client.Del(context.WithoutCancel(ctx), name).Err(), client.Close())
		}
		broker, err := redisstream.New(redisstream.Config{Client: client})
		if err == nil {
			err = errors.Join(fillBroker(ctx, broker, name, n), broker.Close())
		}
		if err != nil {
			return topic{}, errors.Join(err, remove())
		}
		return topic{
			run:    func(ctx context.Context, l *pace.Load) error { return run(ctx, l, name, client) },
			remove: remove,
		}, nil
	}
}
