// Command payments keeps account balances from a topic of transfers, on Kafka and PostgreSQL. Its handlers are
// written against a repository of their own and not against a driver: the same handlers run on SQLite and
// the memory broker in its test.
//
//	KAFKA=127.0.0.1:9092 DATABASE_URL=postgres://... go run ./examples/payments
package main

import (
	"context"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/outbox"
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
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, tables); err != nil {
		return err
	}
	broker, err := kafka.New(kafka.Config{Seeds: strings.Split(os.Getenv("KAFKA"), ",")})
	if err != nil {
		return err
	}
	defer broker.Close()

	rt, err := service(broker, inbox.Map(store, postgresLedger(store)))
	if err != nil {
		return err
	}
	rt.Relay(store.Outbox(), outbox.RelayConfig{})
	probes := &http.Server{Addr: "127.0.0.1:8080", Handler: rt.Health(), ReadHeaderTimeout: time.Second}
	go func() {
		if err := probes.ListenAndServe(); err != http.ErrServerClosed {
			log.Print(err)
		}
	}()
	defer probes.Close()
	return rt.Run(ctx)
}

// service is the whole of the service but for what it runs on.
func service(broker brokers.Broker, ledgers inbox.Store[Ledger]) (*runtime.Runtime, error) {
	rt, err := runtime.New(runtime.Config{Service: "payments", Broker: broker})
	if err != nil {
		return nil, err
	}
	transfers := rt.Consumer("payments.transfers", "transfers")
	runtime.HandleTx(transfers, "transfer.requested", ledgers, transfer)
	return rt, nil
}
