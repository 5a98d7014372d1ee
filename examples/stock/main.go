// Command stock runs a consumer on a stock Watermill adapter, through runtime.Watermill. Against the other examples one
// constructor is different.
//
//	KAFKA=127.0.0.1:9092 go run ./examples/stock
//	NATS=nats://127.0.0.1:4222 go run ./examples/stock
//	REDIS=redis://127.0.0.1:6379/0 go run ./examples/stock
//	AMQP=amqp://guest:guest@127.0.0.1:5672/ go run ./examples/stock
//	DATABASE_URL=postgres://... go run ./examples/stock
package main

import (
	"context"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/runtime"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, openBroker, logPlaced); err != nil {
		log.Fatal(err)
	}
}

// opener opens a broker. closeBroker closes what the runtime does not own, and adds to an error.
type opener func(context.Context) (broker brokers.Broker, closeBroker func(*error), err error)

func run(ctx context.Context, open opener, placed func(context.Context, OrderPlaced) error) (err error) {
	broker, closeBroker, err := open(ctx)
	if err != nil {
		return err
	}
	defer closeBroker(&err)
	rt, err := runtime.New(runtime.Config{Service: "billing", Broker: broker, Policy: within(broker.Capabilities().Patience)})
	if err != nil {
		return err
	}
	orders := rt.Consumer("billing.orders", "orders")
	runtime.Handle(orders, "order.placed", placed)
	return rt.Run(ctx)
}

func openBroker(ctx context.Context) (broker brokers.Broker, closeBroker func(*error), err error) {
	if url := os.Getenv("DATABASE_URL"); url != "" {
		return stockSQL(ctx, url)
	}
	if url := os.Getenv("NATS"); url != "" {
		return stockNATS(url, natsAckWait)
	}
	if url := os.Getenv("REDIS"); url != "" {
		return stockRedis(url, redisIdle)
	}
	if url := os.Getenv("AMQP"); url != "" {
		return stockAMQP(url)
	}
	return stockKafka(strings.Split(os.Getenv("KAFKA"), ","))
}

// within keeps attempts and retries within what the broker waits for an ack. Headrace's own adapters prolong it, and need none of this.
func within(patience time.Duration) (p runtime.Policy) {
	if patience > 0 {
		p.Timeout = patience / 4
		p.Retry.MaxDelay, p.Retry.MaxElapsed = patience/8, patience/2
	}
	return p
}

// OrderPlaced is what this service needs of the event.
type OrderPlaced struct {
	OrderID string `json:"order_id"`
}

func logPlaced(ctx context.Context, e OrderPlaced) error {
	slog.InfoContext(ctx, "order placed", "order", e.OrderID, "message", event.MessageID(ctx))
	return nil
}
