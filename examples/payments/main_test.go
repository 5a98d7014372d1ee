package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/testserver"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/pgxstore"
	"github.com/headrace-go/headrace/stores/sqlite"
)

// The handlers of the service, unchanged, on SQLite and the memory broker.
func TestTransfersOnSQLiteAndMemory(t *testing.T) {
	store, err := sqlite.Open(filepath.Join(t.TempDir(), "payments.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.DB().ExecContext(t.Context(), tables); err != nil {
		t.Fatal(err)
	}
	broker, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	moveMoney(t, broker, inbox.Map(store, sqlLedger(store)), store.Outbox())
	checkBalances(t, func(account string) (cents int64, err error) {
		return cents, store.DB().QueryRowContext(t.Context(), `SELECT cents FROM balances WHERE account = $1`, account).Scan(&cents)
	})
}

// The same on the servers that the service is meant for.
func TestTransfersOnPostgresAndKafka(t *testing.T) {
	seeds, url := testserver.Kafka(t), testserver.Postgres(t)
	own := fmt.Sprintf("payments_%d", time.Now().UnixNano()) // topics, groups and tables of this run
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["search_path"] = own
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), "CREATE SCHEMA "+own); err != nil {
		t.Fatal(err)
	}
	defer pool.Exec(context.WithoutCancel(t.Context()), "DROP SCHEMA "+own+" CASCADE") //nolint:errcheck // best effort
	store, err := pgxstore.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), tables); err != nil {
		t.Fatal(err)
	}
	broker, err := kafka.New(kafka.Config{Seeds: strings.Split(seeds, ",")})
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	moveMoney(t, prefixed{broker, own + "."}, inbox.Map(store, postgresLedger(store)), store.Outbox())
	checkBalances(t, func(account string) (cents int64, err error) {
		return cents, pool.QueryRow(t.Context(), `SELECT cents FROM balances WHERE account = $1`, account).Scan(&cents)
	})
}

// moveMoney runs the service on two transfers that are each asked for twice, until both are booked.
func moveMoney(t *testing.T, broker brokers.Broker, ledgers inbox.Store[Ledger], box outbox.Source) {
	t.Helper()
	publishTransfers(t, broker)
	rt, err := service(broker, ledgers)
	if err != nil {
		t.Fatal(err)
	}
	rt.Relay(box, outbox.RelayConfig{})
	booked := make(chan TransferBooked, 8)
	runtime.Handle(rt.Consumer("test.bookings", "bookings"), "transfer.booked", func(_ context.Context, b TransferBooked) error {
		booked <- b
		return nil
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	for i := range 2 {
		select {
		case <-booked:
		case err := <-ended:
			t.Fatalf("Run ended early: %v", err)
		case <-time.After(time.Minute):
			t.Fatalf("booking %d of 2 did not come", i+1)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run returned %v, want nil", err)
	}
	if len(booked) != 0 {
		t.Errorf("%d more bookings, want none for duplicates", len(booked))
	}
}

func checkBalances(t *testing.T, of func(account string) (int64, error)) {
	t.Helper()
	for account, want := range map[string]int64{"alice": -300, "bob": 300} {
		if got, err := of(account); err != nil || got != want {
			t.Errorf("balance of %s is %d (%v), want %d: each transfer once", account, got, err, want)
		}
	}
}

// prefixed gives a run topics and groups of its own on a server that others use too.
type prefixed struct {
	brokers.Broker
	prefix string
}

func (p prefixed) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	s.Consumer, s.Topic = p.prefix+s.Consumer, p.prefix+s.Topic
	sub, err := p.Broker.Subscriber(s)
	return prefixedSubscriber{sub, p.prefix}, err
}

func (p prefixed) Publisher() (message.Publisher, error) {
	pub, err := p.Broker.Publisher()
	return prefixedPublisher{pub, p.prefix}, err
}

type prefixedSubscriber struct {
	message.Subscriber
	prefix string
}

func (s prefixedSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return s.Subscriber.Subscribe(ctx, s.prefix+topic)
}

type prefixedPublisher struct {
	message.Publisher
	prefix string
}

func (p prefixedPublisher) Publish(topic string, msgs ...*message.Message) error {
	return p.Publisher.Publish(p.prefix+topic, msgs...)
}

// publishTransfers asks for two transfers, each of them twice.
func publishTransfers(t *testing.T, broker brokers.Broker) {
	t.Helper()
	pub, err := broker.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	ctx := event.ContextWithSource(t.Context(), "/bank")
	for range 2 {
		for i := range 2 {
			msg, err := event.New(ctx, "transfer.requested", TransferRequested{"alice", "bob", 100 * int64(i+1)},
				event.WithID(fmt.Sprint(i)), event.WithKey("alice"))
			if err != nil {
				t.Fatal(err)
			}
			if err := pub.Publish("transfers", msg); err != nil {
				t.Fatal(err)
			}
		}
	}
}
