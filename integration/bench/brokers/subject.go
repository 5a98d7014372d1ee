package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"log/slog"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/integration/bench/internal/pace"
	"github.com/headrace-go/headrace/runtime"
)

const (
	window    = 256
	keys      = 1000
	consumer  = "bench"
	eventType = "order.placed"
	// fillBatch is how many messages one call publishes; each has a key of its own.
	fillBatch = 500
)

// payloads are texts of 1 KiB that do not compress by much, so that what is read is what is said. They are text since one of the
// systems carries nothing else as it is.
var payloads = func() [][]byte {
	random := mathrand.NewChaCha8([32]byte{})
	all := make([][]byte, keys)
	for i := range all {
		b := make([]byte, 768)
		_, _ = random.Read(b) // never fails
		all[i] = base64.StdEncoding.AppendEncode(nil, b)
	}
	return all
}()

// topicName is one that nobody has used, and that every system takes.
func topicName() string { return "bench_" + strings.ToLower(rand.Text()[:16]) }

// fill publishes n messages.
func fill(ctx context.Context, pub message.Publisher, topic string, n int) error {
	ctx = event.ContextWithSource(ctx, "/bench")
	batch := make([]*message.Message, 0, fillBatch)
	for i := range n {
		m, err := event.New(ctx, eventType, payloads[i%len(payloads)], event.WithKey("key-"+strconv.Itoa(i%keys)))
		if err != nil {
			return err
		}
		if batch = append(batch, m); len(batch) == fillBatch || i == n-1 {
			if err := pub.Publish(topic, batch...); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	return nil
}

// fillBroker publishes n messages with an adapter of ours, on which the consumer is registered.
func fillBroker(ctx context.Context, b brokers.Broker, topic string, n int) error {
	if r, ok := b.(brokers.Registrar); ok {
		if err := r.Register(ctx, topic, consumer); err != nil {
			return err
		}
	}
	pub, err := b.Publisher()
	if err != nil {
		return err
	}
	if err := fill(ctx, pub, topic, n); err != nil {
		return err
	}
	return pub.Close()
}

// onRouter handles l on a Watermill router, which closes sub.
func onRouter(ctx context.Context, l *pace.Load, topic string, sub message.Subscriber) error {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("bench", topic, sub, func(*message.Message) error {
		l.Handle()
		return nil
	})
	return router.Run(ctx)
}

// onRuntime handles l with every stage of Headrace but a database.
func onRuntime(ctx context.Context, l *pace.Load, topic string, broker brokers.Broker) error {
	policy := runtime.Policy{Window: window} // and the default concurrency: a handler that waits for nothing needs no more
	if l.Wait() > 0 {
		policy.Concurrency = window
	}
	rt, err := runtime.New(runtime.Config{
		Service: "bench", Broker: broker, Logger: slog.New(slog.DiscardHandler), Policy: policy,
		TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider(),
	})
	if err != nil {
		return err
	}
	runtime.Handle(rt.Consumer(consumer, topic), eventType, func(context.Context, []byte) error {
		l.Handle()
		return nil
	})
	return rt.Run(ctx)
}
