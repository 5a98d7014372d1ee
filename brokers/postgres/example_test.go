package postgres_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/postgres"
)

// The effect and the event are one transaction: both are there, or neither.
func ExampleBroker_PublisherTx() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	broker, err := postgres.New(postgres.Config{Pool: pool})
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()

	var pub *postgres.TxPublisher
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO refunds (order_id) VALUES ($1)", "1001"); err != nil {
			return err
		}
		pub = broker.PublisherTx(ctx, tx)
		m := message.NewMessage("refund-1001", []byte(`{"order_id":"1001"}`))
		m.Metadata["ce_partitionkey"] = "1001"
		return pub.Publish("refunds", m)
	})
	if err != nil {
		log.Fatal(err)
	}
	pub.Wake() // optional: consumers need not wait for their next look
}

func ExampleBroker_Register() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	broker, err := postgres.New(postgres.Config{Pool: pool})
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	if err := broker.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	// Both get all orders from the first one on, whenever they start.
	if err := broker.Register(ctx, "orders", "billing.orders", "shipping.orders"); err != nil {
		log.Fatal(err)
	}
	slog.Info("ready")
}

func ExampleBroker_Capabilities() {
	pool, err := pgxpool.New(context.Background(), "") // it does not connect before it is used
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	var broker brokers.Broker
	broker, err = postgres.New(postgres.Config{Pool: pool})
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	c := broker.Capabilities()
	fmt.Println(c.System, c.Ordering, c.Patience, c.ExtendsPatience, c.FanOut, c.Replays)
	// Output: postgresql key 6s true true false
}
