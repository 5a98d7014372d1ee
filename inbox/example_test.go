package inbox_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/testonly"
)

// On a plain Watermill router, without the runtime.
func ExampleHandler() {
	store := testonly.New() // a service takes stores/pgxstore, sqlstore or sqlite
	bus := gochannel.NewGoChannel(gochannel.Config{Persistent: true, BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		fmt.Println(err)
		return
	}
	router.AddConsumerHandler("billing", "orders", bus, inbox.Handler(store, "billing",
		func(_ context.Context, tx *testonly.Tx, msg *message.Message) error {
			fmt.Println("invoice for", msg.UUID)
			tx.Set(msg.UUID, "invoiced")
			return nil
		}))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()

	for range 2 { // the producer sends it twice; Publish returns when it was acked
		if err := bus.Publish("orders", message.NewMessage("order-1", nil)); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(store.Get("order-1"))
	stop()
	fmt.Println(<-ended, bus.Close())
	// Output:
	// invoice for order-1
	// invoiced
	// <nil> <nil>
}
