package main

import (
	"errors"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/runtime"
)

// stockKafka is Watermill's own Kafka adapter behind the runtime. It delivers one un-acked message of a
// partition at a time: brokers/kafka is the one to use. closeBroker closes what the runtime does not own.
func stockKafka(seeds []string) (broker brokers.Broker, closeBroker func(*error), err error) {
	// The default marshaler writes no record key: a key's order would be lost.
	keyed := kafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) {
		return event.KeyOf(m), nil
	})
	pub, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: seeds, Marshaler: keyed}, watermill.NopLogger{})
	if err != nil {
		return nil, nil, err
	}
	closeBroker = func(err *error) { *err = errors.Join(*err, pub.Close()) }
	broker, err = runtime.Watermill(runtime.WatermillConfig{
		Publisher: pub,
		Subscriber: func(s brokers.Subscription) (message.Subscriber, error) {
			cfg := kafka.DefaultSaramaSubscriberConfig()
			cfg.Consumer.Offsets.Initial = sarama.OffsetOldest // the default loses what came before the first start
			return kafka.NewSubscriber(kafka.SubscriberConfig{
				Brokers:               seeds,
				ConsumerGroup:         s.Consumer,
				Unmarshaler:           keyed,
				OverwriteSaramaConfig: cfg,
			}, watermill.NopLogger{})
		},
		Delivery: kafkaDelivery,
		Capabilities: brokers.Capabilities{
			System:   "kafka",
			Ordering: brokers.OrderingPartition,
			FanOut:   true,
			Replays:  true,
		},
	})
	return broker, closeBroker, err
}

// kafkaDelivery tells where a message came from, as the adapter put it into the message's context.
func kafkaDelivery(topic string, m *message.Message) *brokers.Delivery {
	ctx := m.Context()
	d := &brokers.Delivery{Topic: topic, Partition: -1, Offset: -1}
	if p, ok := kafka.MessagePartitionFromCtx(ctx); ok {
		d.Partition = p
	}
	if o, ok := kafka.MessagePartitionOffsetFromCtx(ctx); ok {
		d.Offset = o
	}
	if t, ok := kafka.MessageTimestampFromCtx(ctx); ok {
		d.Time = t
	}
	if k, ok := kafka.MessageKeyFromCtx(ctx); ok {
		d.Key = k
	}
	return d
}
