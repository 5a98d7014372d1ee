package telemetry_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/telemetry"
)

// On a plain Watermill router: one middleware for all handlers, and a decorated publisher. Whatever one
// message causes is one trace.
func Example() {
	spans := tracetest.NewInMemoryExporter()
	tel, err := telemetry.New(telemetry.Config{
		TracerProvider: trace.NewTracerProvider(trace.WithSyncer(spans)),
		System:         "gochannel",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	channel := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	publisher := tel.Publisher(channel)

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		fmt.Println(err)
		return
	}
	router.AddMiddleware(tel.Consumer(telemetry.ConsumerConfig{}).Middleware)
	router.AddHandler("bill", "orders", channel, "invoices", publisher,
		func(msg *message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("invoice-1", msg.Payload)}, nil
		})
	printed := make(chan struct{})
	router.AddConsumerHandler("print", "invoices", channel, func(*message.Message) error {
		close(printed)
		return nil
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()

	if err := publisher.Publish("orders", message.NewMessage("order-1", nil)); err != nil {
		fmt.Println(err)
	}
	<-printed
	stop()
	if err := <-ended; err != nil {
		fmt.Println(err)
	}

	all := spans.GetSpans()
	slices.SortFunc(all, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	for _, s := range all {
		fmt.Println(s.Name, s.SpanKind, s.SpanContext.TraceID() == all[0].SpanContext.TraceID())
	}
	// Output:
	// send orders producer true
	// process orders consumer true
	// send invoices producer true
	// process invoices consumer true
}

// An event that is stored now and published later keeps the trace that it was made in.
func ExampleInject() {
	ctx := telemetry.Extract(context.Background(), message.Metadata{
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"baggage":     "tenant=acme",
	})
	row := message.NewMessage("1", nil)
	telemetry.Inject(ctx, row.Metadata)
	fmt.Println(row.Metadata["traceparent"])
	fmt.Println(row.Metadata["baggage"])
	// Output:
	// 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
	// tenant=acme
}

// Without a valid traceparent the trace goes on from where the event began, as CloudEvents tells it.
func ExampleExtract() {
	ctx := telemetry.Extract(context.Background(), message.Metadata{
		"ce_traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	})
	fmt.Println(oteltrace.SpanContextFromContext(ctx).TraceID())
	// Output: 0af7651916cd43dd8448eb211c80319c
}

func ExampleLogHandler() {
	plain := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})
	log := slog.New(telemetry.LogHandler(plain))
	ctx := telemetry.Extract(context.Background(), message.Metadata{
		"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	})
	log.InfoContext(ctx, "refunded", "order", 7)
	// Output:
	// level=INFO msg=refunded order=7 trace_id=0af7651916cd43dd8448eb211c80319c span_id=b7ad6b7169203331
}

// The numbers of a consumer are read when the metrics are collected.
func ExampleConsumer_Observe() {
	reader := metric.NewManualReader()
	tel, err := telemetry.New(telemetry.Config{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
	if err != nil {
		fmt.Println(err)
		return
	}
	consumer := tel.Consumer(telemetry.ConsumerConfig{Consumer: "billing.orders", Topic: "orders"})
	stop, err := consumer.Observe(func() telemetry.ConsumerStats {
		return telemetry.ConsumerStats{InFlight: 3}
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	var collected metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &collected); err != nil {
		fmt.Println(err)
	}
	for _, m := range collected.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
			fmt.Println(m.Name, sum.DataPoints[0].Value)
		}
	}
	if err := stop(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// headrace.consumer.in_flight 3
	// headrace.consumer.waiting 0
	// headrace.consumer.blocked 0
	// headrace.consumer.held 0
}
