// Command postgres is a service that has nothing but PostgreSQL: it is the broker, the inbox and the store of the
// effects. A handler's effect, the mark that its message was handled and the event that follows commit in
// one transaction, so there is no outbox to relay.
//
//	DATABASE_URL=postgres://... go run ./examples/postgres
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := pgxstore.New(pool)
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx); err != nil { // the broker's tables as well
		return err
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS refunds (order_id text PRIMARY KEY, cents bigint NOT NULL)`); err != nil {
		return err
	}
	broker, err := postgres.New(postgres.Config{Pool: pool})
	if err != nil {
		return err
	}
	defer broker.Close()
	rt, err := runtime.New(runtime.Config{Service: "billing", Broker: broker})
	if err != nil {
		return err
	}
	b := &billing{broker: broker}
	orders := rt.Consumer("billing.orders", "orders")
	runtime.HandleTx(orders, "order.cancelled", store, b.refund)
	refunds := rt.Consumer("mail.refunds", "refunds")
	runtime.Handle(refunds, "refund.issued", tellCustomer)
	return rt.Run(ctx)
}
