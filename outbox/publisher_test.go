package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/sqlite"
)

func TestPublisherPublishesWhatIsCommitted(t *testing.T) {
	m := outboxsuite.NewMemory()
	for _, commit := range []bool{false, true} {
		tx := m.Begin()
		f := &flight.Flight{Context: t.Context(), Original: message.NewMessage("cause", nil), Delivery: &brokers.Delivery{}, CorrelationID: "c-1"}
		p := outbox.NewPublisher(f, m, tx)
		msg := message.NewMessage("1", []byte("x"))
		msg.Metadata.Set(event.MetaPartitionKey, "k")
		if err := p.Publish("t", msg, message.NewMessage("2", nil)); err != nil {
			t.Fatal(err)
		}
		if err := map[bool]func() error{false: tx.Rollback, true: tx.Commit}[commit](); err != nil {
			t.Fatal(err)
		}
		if err := p.Publish("t", message.NewMessage("3", nil)); commit && err == nil {
			t.Error("publish after the commit: got no error")
		}
	}
	page, err := m.Fetch(t.Context(), outbox.Query{Topic: "t", Buckets: []int{outbox.BucketOf("k"), outbox.BucketOf("2")}, Rows: 10, Bytes: 1 << 20})
	if err != nil || len(page.Rows) != 2 {
		t.Fatalf("got %d rows, %v; want the two that were committed", len(page.Rows), err)
	}
	if r := page.Rows[0]; r.UUID != "1" || r.Key != "k" || r.Metadata[event.MetaCorrelationID] != "c-1" {
		t.Errorf("row: got %+v; want message 1 with its key and the correlation id of the context", r)
	}
}

func TestPublisherRefusesAfterClose(t *testing.T) {
	m := outboxsuite.NewMemory()
	tx := m.Begin()
	p := outbox.NewPublisher(t.Context(), m, tx)
	if err := p.Publish("", message.NewMessage("1", nil)); !errors.Is(err, outbox.ErrInvalid) {
		t.Errorf("empty topic: got %v, want ErrInvalid", err)
	}
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Errorf("close twice: %v", err)
	}
	if err := p.Publish("t", message.NewMessage("1", nil)); err == nil {
		t.Error("publish after Close: got no error")
	}
	if err := tx.Commit(); err != nil {
		t.Errorf("the transaction is the caller's, and open: %v", err)
	}
}

func TestPublisherTakesConcurrentCalls(t *testing.T) {
	m := outboxsuite.NewMemory()
	tx := m.Begin()
	p := outbox.NewPublisher(t.Context(), m, tx)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := p.Publish("t", message.NewMessage(fmt.Sprint(i), nil)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	wantBacklog(t, "after the commit", m, outbox.Backlog{Rows: 20})
}

// OrderPlaced is an event as Watermill's CQRS component takes it.
type OrderPlaced struct {
	Order string `json:"order"`
}

// Watermill code that knows only a message.Publisher publishes in the transaction.
func ExampleNewPublisher() {
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	store, err := sqlite.Open(filepath.Join(dir, "shop.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	if err := store.Migrate(ctx); err != nil {
		log.Fatal(err)
	}

	place := func(order string) error {
		tx, err := store.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		// ... the order's row ...
		bus, err := cqrs.NewEventBusWithConfig(outbox.NewPublisher(ctx, store, tx), cqrs.EventBusConfig{
			GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return "orders", nil },
			OnPublish: func(p cqrs.OnEventSendParams) error {
				p.Message.Metadata.Set(event.MetaPartitionKey, order)
				return nil
			},
			Marshaler: cqrs.JSONMarshaler{},
		})
		if err != nil {
			return err
		}
		if err := bus.Publish(ctx, OrderPlaced{Order: order}); err != nil {
			return err
		}
		return tx.Commit()
	}
	if err := place("7"); err != nil {
		log.Fatal(err)
	}

	published := make(printerOfPayloads)
	relay, err := outbox.NewRelay(store.Outbox(), published, outbox.RelayConfig{})
	if err != nil {
		log.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- relay.Run(running) }()
	fmt.Println(<-published)
	stop()
	fmt.Println(<-ended)
	// Output:
	// orders {"order":"7"}
	// <nil>
}

type printerOfPayloads chan string

func (p printerOfPayloads) Publish(topic string, msgs ...*message.Message) error {
	for _, m := range msgs {
		p <- topic + " " + string(m.Payload)
	}
	return nil
}

func (p printerOfPayloads) Close() error { return nil }
