// Command stock runs a consumer on a stock Watermill adapter, watermill-kafka or watermill-sql, through
// runtime.Watermill. Against the other examples one constructor is different.
//
//	KAFKA=127.0.0.1:9092 go run ./examples/stock
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

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/runtime"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, logPlaced); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, placed func(context.Context, OrderPlaced) error) (err error) {
	broker, closeBroker, err := openBroker(ctx)
	if err != nil {
		return err
	}
	defer closeBroker(&err)
	rt, err := runtime.New(runtime.Config{Service: "billing", Broker: broker})
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
	return stockKafka(strings.Split(os.Getenv("KAFKA"), ","))
}

// OrderPlaced is what this service needs of the event.
type OrderPlaced struct {
	OrderID string `json:"order_id"`
}

func logPlaced(ctx context.Context, e OrderPlaced) error {
	slog.InfoContext(ctx, "order placed", "order", e.OrderID, "message", event.MessageID(ctx))
	return nil
}
