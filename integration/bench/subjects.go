package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	stock "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/ordering"
	"github.com/headrace-go/headrace/runtime"
)

const (
	topic     = "orders"
	group     = "bench"
	eventType = "order.placed"
	keys      = 1000
	window    = 1024
)

// subject is one way to handle the messages of a load.
type subject struct {
	name string
	run  func(*load) error
}

// stockIndex is the subject that ratios are also given to.
const stockIndex = 2

var subjects = []subject{
	{"bare router", func(l *load) error { return onRouter(l, nil) }},
	{"intake and settle alone", withIntake},
	{"stock middleware, dedup by id", func(l *load) error { return onRouter(l, stockMiddleware) }},
	{"headrace, no-op telemetry", func(l *load) error {
		return headrace(l, runtime.Config{TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()})
	}},
	{"headrace, SDK samples nothing", func(l *load) error {
		return headrace(l, runtime.Config{
			TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())),
			MeterProvider:  sdkmetric.NewMeterProvider(),
		})
	}},
}

// load is a broker that holds n messages, and a handler that counts them.
type load struct {
	broker  *memory.Broker
	n       int64
	handled atomic.Int64
	done    chan struct{}
}

func newLoad(n int) (*load, error) {
	broker, err := memory.New(memory.Config{MaxMessages: max(n, memory.DefaultMaxMessages), History: memory.NoHistory})
	if err != nil {
		return nil, err
	}
	pub, err := broker.Publisher()
	if err != nil {
		return nil, err
	}
	payload := make([]byte, 256)
	for i := range payload {
		payload[i] = byte('a' + i%26)
	}
	ctx := event.ContextWithSource(context.Background(), "/bench")
	for i := range n {
		msg, err := event.New(ctx, eventType, payload, event.WithKey(fmt.Sprintf("key-%d", i%keys)))
		if err != nil {
			return nil, err
		}
		if err := pub.Publish(topic, msg); err != nil {
			return nil, err
		}
	}
	return &load{broker: broker, n: int64(n), done: make(chan struct{})}, nil
}

// handle counts a message. The last one ends the run.
func (l *load) handle() {
	if l.handled.Add(1) == l.n {
		close(l.done)
	}
}

// onRouter handles the load on a plain router, with the middleware that add puts on it.
func onRouter(l *load, add func(*message.Router, message.Publisher) error) error {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	pub, err := l.broker.Publisher()
	if err != nil {
		return err
	}
	if add != nil {
		if err := add(router, pub); err != nil {
			return err
		}
	}
	sub, err := l.broker.Subscriber(brokers.Subscription{Consumer: group, Topic: topic, Window: window})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("bench", topic, sub, func(*message.Message) error { l.handle(); return nil })
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-l.done
	if err := router.Close(); err != nil {
		return err
	}
	return <-ended
}

// stockMiddleware is what Watermill brings for the job. Its deduplicator goes by the message's UUID: the
// default, a checksum of the payload, takes short messages for duplicates of each other.
func stockMiddleware(router *message.Router, pub message.Publisher) error {
	poison, err := stock.PoisonQueue(pub, topic+".DLT")
	if err != nil {
		return err
	}
	dedup := &stock.Deduplicator{
		KeyFactory: func(m *message.Message) (string, error) { return m.UUID, nil },
		Timeout:    time.Minute,
	}
	router.AddMiddleware(
		stock.Recoverer,
		stock.CorrelationID,
		poison,
		stock.Retry{MaxRetries: 4, InitialInterval: 100 * time.Millisecond, Multiplier: 2}.Middleware,
		dedup.Middleware,
	)
	return nil
}

// withIntake is a plain router with Headrace's intake, which settles, and nothing else.
func withIntake(l *load) error {
	intake, err := ordering.New(ordering.Config{Consumer: group, Window: window})
	if err != nil {
		return err
	}
	return onRouter(l, func(router *message.Router, _ message.Publisher) error {
		router.AddSubscriberDecorators(intake.Decorate)
		router.AddMiddleware(intake.Middleware)
		return nil
	})
}

// headrace handles the load with a whole runtime: every stage but a database.
func headrace(l *load, cfg runtime.Config) error {
	cfg.Service = "bench"
	cfg.Broker = l.broker
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Window = window
	rt, err := runtime.New(cfg)
	if err != nil {
		return err
	}
	c := rt.Consumer(group, topic)
	runtime.Handle(c, eventType, func(context.Context, []byte) error { l.handle(); return nil })
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	select {
	case <-l.done:
		stop()
		return <-ended
	case err := <-ended:
		stop()
		return fmt.Errorf("run ended early: %w", err)
	}
}
