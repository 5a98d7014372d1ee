// Command service is the README's main: one consumer of orders, on the broker that BROKER_URL names, with
// its effects and its inbox in a SQLite file.
//
//	go run ./examples/service                                     # memory: three orders, nothing to install
//	BROKER_URL=embedded:./data go run ./examples/service          # JetStream in this process, kept in ./data
//	BROKER_URL=nats://127.0.0.1:4222 go run ./examples/service
//	BROKER_URL=kafka://127.0.0.1:9092 go run ./examples/service
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/runtime"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	broker, err := openBroker(os.Getenv("BROKER_URL"))
	if err != nil {
		return err
	}
	defer broker.Close()
	store, err := openStore(ctx, os.Getenv("DATABASE"))
	if err != nil {
		return err
	}
	defer store.Close()
	rt, err := runtime.New(runtime.Config{Service: "billing", Broker: broker})
	if err != nil {
		return err
	}
	b := &billing{store: store}
	orders := rt.Consumer("billing.orders", "orders")
	runtime.Handle(orders, "order.placed", b.notifyWarehouse)
	runtime.HandleTx(orders, "order.cancelled", store, b.refund)
	rt.Relay(store.Outbox(), outbox.RelayConfig{})
	return rt.Run(ctx)
}
