package ordering_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/ordering"
)

// A plain Watermill router with lanes: messages of one customer never overlap.
func Example() {
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	intake, err := ordering.New(ordering.Config{Consumer: "billing.orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	router := message.NewDefaultRouter(watermill.NopLogger{})
	router.AddSubscriberDecorators(intake.Decorate) // the last decorator
	router.AddMiddleware(intake.Middleware)         // the first middleware
	router.AddConsumerHandler("orders", "orders", broker, func(msg *message.Message) error {
		fmt.Printf("%s: %s\n", msg.Metadata.Get(event.MetaSubject), msg.Payload)
		return nil
	})
	go func() { _ = router.Run(context.Background()) }()
	<-router.Running()

	for _, what := range []string{"placed", "paid", "shipped"} {
		msg := message.NewMessage(watermill.NewUUID(), []byte(what))
		msg.Metadata.Set(event.MetaSubject, "customer-7")
		if err := broker.Publish("orders", msg); err != nil {
			fmt.Println(err)
		}
	}
	if err := router.Close(); err != nil { // drains first
		fmt.Println(err)
	}
	// Output:
	// customer-7: placed
	// customer-7: paid
	// customer-7: shipped
}

// Drain before the router is closed, with a limit of one's own.
func ExampleIntake_Drain() {
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	intake, err := ordering.New(ordering.Config{Consumer: "billing.orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	router := message.NewDefaultRouter(watermill.NopLogger{})
	router.AddSubscriberDecorators(intake.Decorate)
	router.AddMiddleware(intake.Middleware)
	began := make(chan struct{})
	router.AddConsumerHandler("orders", "orders", broker, func(*message.Message) error {
		close(began)
		fmt.Println("handled")
		return nil
	})
	go func() { _ = router.Run(context.Background()) }()
	<-router.Running()
	if err := broker.Publish("orders", message.NewMessage(watermill.NewUUID(), nil)); err != nil {
		fmt.Println(err)
	}
	<-began

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println("drain:", intake.Drain(ctx))
	fmt.Println("close:", router.Close())
	// Output:
	// handled
	// drain: <nil>
	// close: <nil>
}

// A circuit breaker and an operator may pause at once; deliveries go on when both have resumed.
func ExampleIntake_Pause() {
	intake, err := ordering.New(ordering.Config{Consumer: "billing.orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	intake.Pause("database is down")
	intake.Pause("operator")
	intake.Resume("database is down")
	fmt.Println(intake.Stats().Paused)
	intake.Resume("operator")
	fmt.Println(intake.Stats().Paused)
	// Output:
	// [operator]
	// []
}

// Lanes by a field of one's own, and by default where it is absent.
func ExampleConfig_key() {
	intake, err := ordering.New(ordering.Config{
		Consumer: "billing.orders",
		Key: func(msg *message.Message) string {
			if account := msg.Metadata.Get("account"); account != "" {
				return account
			}
			return ordering.DefaultKey(msg)
		},
	})
	fmt.Println(intake != nil, err)
	// Output:
	// true <nil>
}
