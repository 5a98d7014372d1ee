package ledger_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/stores/testonly"
)

// On a plain Watermill router, without the runtime. A real service keeps its ledger in its database, or in a
// directory: see ledger/file.
func Example() {
	l, err := ledger.New(ledger.Config{Service: "billing", Store: testonly.NewLedger()})
	if err != nil {
		fmt.Println(err)
		return
	}
	bus := gochannel.NewGoChannel(gochannel.Config{Persistent: true, BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	dead, err := poison.New(poison.Config{
		Consumer: "billing.orders", Publisher: bus,
		OnStored: func(_ context.Context, r poison.Record) { l.Forget(r.Consumer, r.MessageID, r.Deaths) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	retry, err := middleware.Retry(middleware.RetryConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		fmt.Println(err)
		return
	}
	router.AddConsumerHandler("billing.orders", "orders", bus, func(msg *message.Message) error {
		fmt.Println("handled", msg.UUID)
		return nil
	}).AddMiddleware(dead.Middleware, retry, l.Middleware("billing.orders"), middleware.Recover())

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := l.Begin(ctx); err != nil { // before the first message
		fmt.Println(err)
		return
	}
	ended := make(chan error)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()
	if err := bus.Publish("orders", message.NewMessage("order-1", nil)); err != nil {
		fmt.Println(err)
	}
	l.Stopping() // as the drain begins
	stop()
	fmt.Println(<-ended, bus.Close())
	fmt.Println(l.End(context.WithoutCancel(ctx))) // after the last message
	// Output:
	// handled order-1
	// <nil> <nil>
	// <nil>
}
