package runtime_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlite"
)

type (
	orderPlaced struct {
		OrderID string `json:"order_id"`
	}
	invoiceIssued struct {
		OrderID string `json:"order_id"`
	}
)

// newRuntime is a runtime on a memory broker, with publish for what others would send.
func newRuntime() (rt *runtime.Runtime, publish func(topic, id, eventType string, data any)) {
	broker, err := memory.New(memory.Config{})
	if err != nil {
		log.Fatal(err)
	}
	pub, err := broker.Publisher()
	if err != nil {
		log.Fatal(err)
	}
	rt, err = runtime.New(runtime.Config{Service: "billing", Broker: broker, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	ctx := event.ContextWithSource(context.Background(), "/shop")
	return rt, func(topic, id, eventType string, data any) {
		msg, err := event.New(ctx, eventType, data, event.WithID(id), event.WithKey("customer-1"))
		if err != nil {
			log.Fatal(err)
		}
		if err := pub.Publish(topic, msg); err != nil {
			log.Fatal(err)
		}
	}
}

// An order that came by HTTP and its event commit together. Wake tells the relay, which need not wait for its next poll.
func ExampleRuntime_Wake() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(context.Background())
	store, err := sqlite.Open(filepath.Join(dir, "shop.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	if err := store.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	rt, _ := newRuntime()
	rt.Relay(store.Outbox(), outbox.RelayConfig{})
	runtime.Handle(rt.Consumer("billing.orders", "orders"), "order.placed", func(_ context.Context, e orderPlaced) error {
		fmt.Println("placed", e.OrderID)
		stop()
		return nil
	})

	place := func(w http.ResponseWriter, req *http.Request) {
		tx, err := store.DB().BeginTx(req.Context(), nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer tx.Rollback()
		// The order's row would be written here, with the same tx.
		placed, err := event.New(event.ContextWithSource(req.Context(), "/shop"), "order.placed", orderPlaced{OrderID: "1001"})
		if err == nil {
			err = outbox.Add(req.Context(), store, tx, "orders", placed)
		}
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		rt.Wake()
		w.WriteHeader(http.StatusCreated)
	}
	ended := make(chan error)
	go func() { ended <- rt.Run(ctx) }()
	<-rt.Running()
	w := httptest.NewRecorder()
	place(w, httptest.NewRequest("POST", "/orders", nil))
	fmt.Println("run:", <-ended)
	// Output:
	// placed 1001
	// run: <nil>
}

// A plain handler is at-least-once and gets the message's id for its own idempotency key.
func ExampleHandle() {
	rt, publish := newRuntime()
	ctx, stop := context.WithCancel(context.Background())
	orders := rt.Consumer("billing.orders", "orders")
	runtime.Handle(orders, "order.placed", func(ctx context.Context, e orderPlaced) error {
		fmt.Println("placed", e.OrderID, "idempotency key", event.MessageID(ctx))
		stop()
		return nil
	})
	publish("orders", "e-1", "order.placed", orderPlaced{OrderID: "1001"})
	fmt.Println("run:", rt.Run(ctx))
	// Output:
	// placed 1001 idempotency key ce:/shop e-1
	// run: <nil>
}

// The effect, the inbox's claim and the outgoing event are one transaction: what is delivered twice takes effect
// once.
func ExampleHandleTx() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := sqlite.Open(filepath.Join(dir, "billing.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	if err := store.Migrate(context.Background()); err != nil {
		log.Fatal(err)
	}
	rt, publish := newRuntime()
	runtime.HandleTx(rt.Consumer("billing.orders", "orders"), "order.placed", store,
		func(ctx context.Context, tx *sql.Tx, e orderPlaced) error {
			fmt.Println("bill", e.OrderID)
			issued, err := event.New(ctx, "invoice.issued", invoiceIssued(e))
			if err != nil {
				return err
			}
			return outbox.Add(ctx, store, tx, "invoices", issued)
		})
	rt.Relay(store.Outbox(), outbox.RelayConfig{})
	ctx, stop := context.WithCancel(context.Background())
	runtime.Handle(rt.Consumer("mailing.invoices", "invoices"), "invoice.issued", func(ctx context.Context, e invoiceIssued) error {
		fmt.Println("mail invoice of", e.OrderID, "caused by", event.CorrelationID(ctx))
		stop()
		return nil
	})
	publish("orders", "e-1", "order.placed", orderPlaced{OrderID: "1001"})
	publish("orders", "e-1", "order.placed", orderPlaced{OrderID: "1001"})
	fmt.Println("run:", rt.Run(ctx))
	// Output:
	// bill 1001
	// mail invoice of 1001 caused by e-1
	// run: <nil>
}

// What cannot be handled goes to the dead-letter topic, and its key goes on.
func ExampleHandleDeadLetters() {
	rt, publish := newRuntime()
	ctx, stop := context.WithCancel(context.Background())
	runtime.Handle(rt.Consumer("billing.orders", "orders"), "order.placed", func(context.Context, orderPlaced) error {
		return classify.Permanent(errors.New("the account is closed"))
	})
	runtime.HandleDeadLetters(rt.Consumer("billing.alarm", "orders.DLT"), func(_ context.Context, dead poison.Record) error {
		fmt.Printf("%s could not handle %s: %s: %s\n", dead.Consumer, dead.MessageID, dead.Error, dead.Payload)
		stop()
		return nil
	})
	publish("orders", "e-1", "order.placed", orderPlaced{OrderID: "1001"})
	fmt.Println("run:", rt.Run(ctx))
	// Output:
	// billing.orders could not handle ce:/shop e-1: the account is closed: {"order_id":"1001"}
	// run: <nil>
}

// A raw handler gets any message; what it returns is published before the ack.
func ExampleHandlePublish() {
	rt, publish := newRuntime()
	ctx, stop := context.WithCancel(context.Background())
	runtime.HandlePublish(rt.Consumer("archive", "orders"), runtime.AnyType, "archived",
		func(msg *message.Message) ([]*message.Message, error) {
			copied, err := event.New(msg.Context(), "order.archived", []byte(msg.Payload), event.WithContentType("application/json"))
			if err != nil {
				return nil, err
			}
			return []*message.Message{copied}, nil
		})
	runtime.Handle(rt.Consumer("audit", "archived"), "order.archived", func(_ context.Context, e orderPlaced) error {
		fmt.Println("archived", e.OrderID)
		stop()
		return nil
	})
	publish("orders", "e-1", "order.placed", orderPlaced{OrderID: "1001"})
	fmt.Println("run:", rt.Run(ctx))
	// Output:
	// archived 1001
	// run: <nil>
}

// Any stock Watermill pub/sub works.
func ExampleWatermill() {
	pubsub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	broker, err := runtime.Watermill(runtime.WatermillConfig{
		Subscriber:   func(brokers.Subscription) (message.Subscriber, error) { return pubsub, nil },
		Publisher:    pubsub,
		Capabilities: brokers.Capabilities{System: "gochannel", FanOut: true},
	})
	if err != nil {
		log.Fatal(err)
	}
	rt, err := runtime.New(runtime.Config{Service: "billing", Broker: broker})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	orders := rt.Consumer("billing.orders", "orders")
	runtime.HandleMessage(orders, runtime.AnyType, func(msg *message.Message) error {
		fmt.Printf("%s\n", msg.Payload)
		stop()
		return nil
	})
	if err := pubsub.Publish("orders", message.NewMessage("1", []byte("plain bytes"))); err != nil {
		log.Fatal(err)
	}
	fmt.Println("run:", rt.Run(ctx))
	// Output:
	// plain bytes
	// run: <nil>
}

func ExampleRuntime_Health() {
	rt, _ := newRuntime()
	probes := httptest.NewServer(rt.Health())
	defer probes.Close()
	resp, err := http.Get(probes.URL + "/readyz")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output:
	// 503 Service Unavailable
}
