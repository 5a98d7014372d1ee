package main

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/runtime"
)

// subject is one way to handle a load. run returns when ctx has ended.
type subject struct {
	name string
	run  func(context.Context, *load) error
}

// fetchHook tells a load what franz-go hands out.
type fetchHook struct{ load *load }

func (h fetchHook) OnFetchRecordUnbuffered(r *kgo.Record, polled bool) {
	if polled {
		h.load.fetch(r.Partition, r.Offset)
	}
}

// OnConsume is the same for sarama, which calls it.
func (h fetchHook) OnConsume(m *sarama.ConsumerMessage) { h.load.fetch(m.Partition, m.Offset) }

var raw = subject{"raw franz-go poll loop", func(ctx context.Context, l *load) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(l.seeds...), kgo.ConsumerGroup(rand.Text()), kgo.ConsumeTopics(l.topic.name),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.WithHooks(fetchHook{l}))
	if err != nil {
		return err
	}
	defer cl.Close()
	for ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if ctx.Err() == nil {
				l.Handle()
				if note := l.noteOf(r.Partition, r.Offset); note != nil {
					note()
				}
			}
		})
	}
	return nil
}}

var stockRouter = subject{"stock watermill-kafka router", func(ctx context.Context, l *load) error {
	config := stock.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Interceptors = []sarama.ConsumerInterceptor{fetchHook{l}}
	sub, err := stock.NewSubscriber(stock.SubscriberConfig{
		Brokers: l.seeds, Unmarshaler: stock.DefaultMarshaler{}, ConsumerGroup: rand.Text(), OverwriteSaramaConfig: config,
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	return onRouter(ctx, l, sub, func(m *message.Message) error {
		l.Handle()
		partition, _ := stock.MessagePartitionFromCtx(m.Context())
		offset, _ := stock.MessagePartitionOffsetFromCtx(m.Context())
		l.ack(partition, offset, m.Acked())
		return nil
	})
}}

func onRouter(ctx context.Context, l *load, sub message.Subscriber, handle message.NoPublishHandlerFunc) error {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("bench", l.topic.name, sub, handle)
	return router.Run(ctx)
}

// bare is the adapter on a bare router, which starts a goroutine for each delivery and keeps no order.
var bare = subject{"brokers/kafka, bare router", func(ctx context.Context, l *load) error {
	return withBroker(l, func(broker *kafka.Broker) error {
		sub, err := broker.Subscriber(brokers.Subscription{Consumer: "bench." + rand.Text(), Topic: l.topic.name, Window: l.window})
		if err != nil {
			return err
		}
		return onRouter(ctx, l, sub, func(m *message.Message) error {
			l.Handle()
			d := brokers.DeliveryOf(m.Context())
			l.ack(d.Partition, d.Offset, m.Acked())
			return nil
		})
	})
}}

func withBroker(l *load, run func(*kafka.Broker) error) error {
	broker, err := kafka.New(kafka.Config{Seeds: l.seeds, Options: []kgo.Opt{kgo.WithHooks(fetchHook{l})}})
	if err != nil {
		return err
	}
	return errors.Join(run(broker), broker.Close())
}

var headrace = subject{"headrace", func(ctx context.Context, l *load) error {
	concurrency := 0 // the default: a handler that waits for nothing needs no more
	if l.Wait() > 0 {
		concurrency = l.window
	}
	return onRuntime(ctx, l, concurrency, func(ctx context.Context, _ []byte) error {
		l.Handle()
		l.ackOf(ctx)
		return nil
	})
}}

// ackOf tells that the message that is handled in ctx will be settled by the runtime.
func (l *load) ackOf(ctx context.Context) {
	f := flight.From(ctx)
	note := l.noteOf(f.Delivery.Partition, f.Delivery.Offset)
	if note == nil {
		return
	}
	d := *f.Delivery // its own: nobody changes the adapter's
	settled := d.Settled
	d.Settled = func() {
		if f.Settlement() == flight.Acked {
			note()
		}
		settled()
	}
	f.Delivery = &d
}

// onRuntime handles l with every stage but a database.
func onRuntime(ctx context.Context, l *load, concurrency int, handle func(context.Context, []byte) error) error {
	return withBroker(l, func(broker *kafka.Broker) error {
		rt, err := runtime.New(runtime.Config{
			Service: "bench", Broker: broker, Logger: slog.New(slog.DiscardHandler),
			Policy:         runtime.Policy{Window: l.window, Concurrency: concurrency},
			TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider(),
		})
		if err != nil {
			return err
		}
		runtime.Handle(rt.Consumer("bench."+rand.Text(), l.topic.name), eventType, handle)
		return rt.Run(ctx)
	})
}
