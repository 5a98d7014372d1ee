package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/runtime"
)

const (
	partitions = 8
	eventType  = "order.placed"
	stockName  = "stock watermill-kafka router"
)

// distribution is how records have their keys.
type distribution struct {
	name string
	key  func(i int) int
}

var distributions = []distribution{
	{"10,000 even", func(i int) int { return i % 10_000 }},
	{"100 hot", func(i int) int { return i % 100 }},
	{"zipf", func() func(int) int {
		z := mathrand.NewZipf(mathrand.New(mathrand.NewPCG(1, 2)), 1.1, 1, 9_999)
		return func(int) int { return int(z.Uint64()) }
	}()},
}

// fill makes a topic with n records, and returns its name.
func fill(seeds []string, n int, d distribution) (string, error) {
	ctx := context.Background()
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.MetadataMinAge(100*time.Millisecond), kgo.UnknownTopicRetries(50))
	if err != nil {
		return "", err
	}
	defer cl.Close()
	topic := "bench." + rand.Text()
	if _, err := kadm.NewClient(cl).CreateTopic(ctx, partitions, -1, nil, topic); err != nil {
		return "", err
	}
	value := make([]byte, 1024)
	for i := range value {
		value[i] = byte('a' + i%26)
	}
	failed := make(chan error, 1)
	for i := range n {
		r := &kgo.Record{Topic: topic, Value: value, Key: fmt.Appendf(nil, "key-%d", d.key(i)), Headers: []kgo.RecordHeader{
			{Key: "ce_id", Value: fmt.Appendf(nil, "%d", i)},
			{Key: "ce_source", Value: []byte("/bench")},
			{Key: "ce_specversion", Value: []byte("1.0")},
			{Key: "ce_type", Value: []byte(eventType)},
		}}
		cl.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return "", err
	}
	select {
	case err := <-failed:
		return "", err
	default:
		return topic, nil
	}
}

// subject is one way to handle a load. run returns when ctx has ended.
type subject struct {
	name string
	run  func(context.Context, *load) error
}

var raw = subject{"raw franz-go poll loop", func(ctx context.Context, l *load) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(l.seeds...), kgo.ConsumerGroup(rand.Text()), kgo.ConsumeTopics(l.topic),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer cl.Close()
	for ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(*kgo.Record) {
			if ctx.Err() == nil {
				l.handle()
			}
		})
	}
	return nil
}}

var stockRouter = subject{stockName, func(ctx context.Context, l *load) error {
	config := stock.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	sub, err := stock.NewSubscriber(stock.SubscriberConfig{
		Brokers: l.seeds, Unmarshaler: stock.DefaultMarshaler{}, ConsumerGroup: rand.Text(), OverwriteSaramaConfig: config,
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("bench", l.topic, sub, func(*message.Message) error { l.handle(); return nil })
	return router.Run(ctx)
}}

// bare is the adapter on a bare router, which starts a goroutine for each delivery and keeps no order.
var bare = subject{"brokers/kafka, bare router", func(ctx context.Context, l *load) error {
	broker, err := kafka.New(kafka.Config{Seeds: l.seeds})
	if err != nil {
		return err
	}
	sub, err := broker.Subscriber(brokers.Subscription{Consumer: "bench." + rand.Text(), Topic: l.topic, Window: l.window})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("bench", l.topic, sub, func(*message.Message) error { l.handle(); return nil })
	err = router.Run(ctx)
	if closeErr := broker.Close(); err == nil {
		err = closeErr
	}
	return err
}}

var headrace = subject{"headrace", func(ctx context.Context, l *load) error {
	broker, err := kafka.New(kafka.Config{Seeds: l.seeds})
	if err != nil {
		return err
	}
	rt, err := runtime.New(runtime.Config{
		Service: "bench", Broker: broker, Logger: slog.New(slog.DiscardHandler),
		Policy:         runtime.Policy{Window: l.window, Concurrency: l.window},
		TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider(),
	})
	if err != nil {
		return err
	}
	c := rt.Consumer("bench."+rand.Text(), l.topic)
	runtime.Handle(c, eventType, func(context.Context, []byte) error { l.handle(); return nil })
	err = rt.Run(ctx)
	if closeErr := broker.Close(); err == nil {
		err = closeErr
	}
	return err
}}
