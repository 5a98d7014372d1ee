// Command router uses single stages of Headrace on a plain Watermill router, without its runtime: the intake
// for order per key, retries by verdict, recovery, and dead letters. Everything else, the pub/sub
// included, is stock Watermill.
//
//	go run ./examples/router
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/ordering"
	"github.com/headrace-go/headrace/poison"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pubsub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	intake, err := ordering.New(ordering.Config{Consumer: "mailing"})
	if err != nil {
		return err
	}
	dead, err := poison.New(poison.Config{Consumer: "mailing", Publisher: pubsub})
	if err != nil {
		return err
	}
	retry, err := middleware.Retry(middleware.RetryConfig{MaxAttempts: 3, InitialDelay: 10 * time.Millisecond})
	if err != nil {
		return err
	}
	router.AddSubscriberDecorators(intake.Decorate) // the last decorator
	router.AddMiddleware(intake.Middleware, dead.Middleware, retry, middleware.Recover())

	var handled sync.WaitGroup
	handled.Add(3)
	router.AddConsumerHandler("mailing", "orders", pubsub, func(msg *message.Message) error {
		if string(msg.Payload) == "bad" {
			return classify.Permanent(errors.New("no such address"))
		}
		fmt.Printf("mailed %s\n", msg.Payload)
		handled.Done()
		return nil
	})
	router.AddConsumerHandler("graveyard", "orders.DLT", pubsub, func(msg *message.Message) error {
		record, err := poison.Parse(msg)
		if err != nil {
			return err
		}
		fmt.Printf("dead letter of %s: %s\n", record.Consumer, record.Error)
		handled.Done()
		return nil
	})

	for _, payload := range []string{"first", "bad", "second"} {
		msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
		msg.Metadata[event.MetaPartitionKey] = "customer-1"
		if err := pubsub.Publish("orders", msg); err != nil {
			return err
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	handled.Wait()
	return errors.Join(router.Close(), <-ended)
}
