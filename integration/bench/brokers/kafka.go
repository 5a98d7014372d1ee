package main

import (
	"context"
	"errors"
	"strings"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	stockkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/integration/bench/internal/pace"
)

const kafkaPartitions = 8

var kafkaSystem = system{"kafka", "HEADRACE_KAFKA_SEEDS", 300_000, []subject{
	{raw, "franz-go poll loop", 1, onKafka(func(ctx context.Context, l *pace.Load, name string, broker kafka.Config) error {
		client, err := kgo.NewClient(kgo.SeedBrokers(broker.Seeds...), kgo.ConsumerGroup(topicName()), kgo.ConsumeTopics(name),
			kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()))
		if err != nil {
			return err
		}
		defer client.Close()
		for ctx.Err() == nil {
			client.PollRecords(ctx, 0).EachRecord(func(*kgo.Record) {
				if ctx.Err() == nil {
					l.Handle()
				}
			})
		}
		return nil
	})},
	{stock, "watermill-kafka", kafkaPartitions, onKafka(func(ctx context.Context, l *pace.Load, name string, broker kafka.Config) error {
		config := stockkafka.DefaultSaramaSubscriberConfig()
		config.Consumer.Offsets.Initial = sarama.OffsetOldest
		sub, err := stockkafka.NewSubscriber(stockkafka.SubscriberConfig{
			Brokers: broker.Seeds, Unmarshaler: stockkafka.DefaultMarshaler{}, ConsumerGroup: topicName(), OverwriteSaramaConfig: config,
		}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		return onRouter(ctx, l, name, sub)
	})},
	{headrace, "headrace", window, onKafka(func(ctx context.Context, l *pace.Load, name string, config kafka.Config) error {
		broker, err := kafka.New(config)
		if err != nil {
			return err
		}
		return errors.Join(onRuntime(ctx, l, name, broker), broker.Close())
	})},
}}

// onKafka makes topics of 8 partitions, and deletes them.
func onKafka(run func(ctx context.Context, l *pace.Load, name string, broker kafka.Config) error) func(context.Context, string, int) (topic, error) {
	return func(ctx context.Context, address string, n int) (topic, error) {
		config, name := kafka.Config{Seeds: strings.Split(address, ",")}, topicName()
		client, err := kgo.NewClient(kgo.SeedBrokers(config.Seeds...))
		if err != nil {
			return topic{}, err
		}
		admin := kadm.NewClient(client)
		if _, err := admin.CreateTopic(ctx, kafkaPartitions, -1, nil, name); err != nil {
			client.Close()
			return topic{}, err
		}
		remove := func() error {
			defer client.Close()
			_, err := admin.DeleteTopic(context.WithoutCancel(ctx), name)
			return err
		}
		broker, err := kafka.New(config)
		if err == nil {
			err = errors.Join(fillBroker(ctx, broker, name, n), broker.Close())
		}
		if err != nil {
			return topic{}, errors.Join(err, remove())
		}
		return topic{
			run:    func(ctx context.Context, l *pace.Load) error { return run(ctx, l, name, config) },
			remove: remove,
		}, nil
	}
}
