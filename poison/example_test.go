package poison_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/poison"
)

// Poison alone on a plain Watermill router: it judges the errors itself.
func ExamplePoison_Middleware() {
	pubsub := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 1}, watermill.NopLogger{})
	deadLetters, err := poison.New(poison.Config{Consumer: "billing.orders", Publisher: pubsub})
	if err != nil {
		panic(err)
	}
	if err := deadLetters.Check("orders"); err != nil {
		panic(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	router.AddMiddleware(deadLetters.Middleware)
	router.AddConsumerHandler("billing", "orders", pubsub, func(*message.Message) error {
		return classify.Permanent(errors.New("total is negative"))
	})

	arrived, err := pubsub.Subscribe(context.Background(), "orders.DLT")
	if err != nil {
		panic(err)
	}
	ended := make(chan error)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	if err := pubsub.Publish("orders", message.NewMessage("order-1", []byte(`{"total":-1}`))); err != nil {
		panic(err)
	}
	dead := <-arrived
	dead.Ack()

	record, err := poison.Parse(dead)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s could not handle %s of %s: %s: %s\n", record.Consumer, record.UUID, record.Topic, record.Verdict, record.Error)
	fmt.Printf("%s\n", record.Payload)

	if err := router.Close(); err != nil {
		panic(err)
	}
	if err := <-ended; err != nil {
		panic(err)
	}
	if err := pubsub.Close(); err != nil {
		panic(err)
	}
	// Output:
	// billing.orders could not handle order-1 of orders: poison: total is negative
	// {"total":-1}
}

// A consumer of a dead-letter topic is refused when it is wired.
func ExamplePoison_Check() {
	deadLetters, err := poison.New(poison.Config{
		Consumer:  "alerts",
		Publisher: gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}),
	})
	if err != nil {
		panic(err)
	}
	err = deadLetters.Check("orders.DLT")
	fmt.Println(errors.Is(err, poison.ErrDeadLetterTopic))
	// Output: true
}
