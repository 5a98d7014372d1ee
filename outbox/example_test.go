package outbox_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/sqlite"
)

// printer is a publisher; brokers/* have real ones.
type printer chan string

func (p printer) Publish(topic string, msgs ...*message.Message) error {
	for _, m := range msgs {
		p <- fmt.Sprintf("%s %s %s", topic, m.UUID, m.Payload)
	}
	return nil
}

func (p printer) Close() error { return nil }

// An order and its event commit together, or not at all; a relay publishes the event.
func Example() {
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
	if _, err := store.DB().Exec("CREATE TABLE orders (id TEXT PRIMARY KEY)"); err != nil {
		log.Fatal(err)
	}

	published := make(printer)
	relay, err := outbox.NewRelay(store.Outbox(), published, outbox.RelayConfig{})
	if err != nil {
		log.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- relay.Run(running) }()

	place := func(id string, fail bool) error {
		tx, err := store.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.Exec("INSERT INTO orders (id) VALUES (?)", id); err != nil {
			return err
		}
		msg := message.NewMessage("placed-"+id, []byte(`{"order":"`+id+`"}`))
		msg.Metadata.Set(event.MetaPartitionKey, id)
		if err := outbox.Add(ctx, store, tx, "orders", msg); err != nil {
			return err
		}
		if fail {
			return fmt.Errorf("order %s: card declined", id)
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		relay.Wake()
		return nil
	}
	fmt.Println(place("1", false))
	fmt.Println(<-published)
	fmt.Println(place("2", true))
	fmt.Println(place("3", false))
	fmt.Println(<-published)
	stop()
	fmt.Println(<-ended)
	// Output:
	// <nil>
	// orders placed-1 {"order":"1"}
	// order 2: card declined
	// <nil>
	// orders placed-3 {"order":"3"}
	// <nil>
}
