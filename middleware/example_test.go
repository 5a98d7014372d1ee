package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/middleware"
)

// plainRouter returns a stock Watermill router and a stock Watermill Pub/Sub, with nothing else of Headrace.
func plainRouter() (*message.Router, *gochannel.GoChannel) {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	return router, gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 10}, watermill.NopLogger{})
}

// handleOne runs the router until msg, sent to orders, was acked and done.
func handleOne(router *message.Router, pubsub *gochannel.GoChannel, msg *message.Message, done <-chan struct{}) {
	ended := make(chan error)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	if err := pubsub.Publish("orders", msg); err != nil {
		panic(err)
	}
	<-done
	if err := router.Close(); err != nil {
		panic(err)
	}
	if err := <-ended; err != nil {
		panic(err)
	}
	if err := pubsub.Close(); err != nil {
		panic(err)
	}
}

// Retry alone on a plain Watermill router.
func ExampleRetry() {
	retry, err := middleware.Retry(middleware.RetryConfig{
		InitialDelay: time.Millisecond,
		Jitter:       middleware.NoJitter,
		OnRetry: func(_ context.Context, e middleware.RetryEvent) {
			fmt.Printf("attempt %d: %v, again in %v\n", e.Attempt, e.Err, e.Delay)
		},
	})
	if err != nil {
		panic(err)
	}
	router, pubsub := plainRouter()
	router.AddMiddleware(retry)
	done := make(chan struct{})
	router.AddConsumerHandler("warehouse", "orders", pubsub, func(msg *message.Message) error {
		if middleware.Attempt(msg.Context()) < 3 {
			return errors.New("warehouse is down")
		}
		fmt.Println("handled", msg.UUID)
		close(done)
		return nil
	})
	handleOne(router, pubsub, message.NewMessage("order-1", nil), done)
	// Output:
	// attempt 1: warehouse is down, again in 1ms
	// attempt 2: warehouse is down, again in 2ms
	// handled order-1
}

// Timeout alone on a plain Watermill router. The router nacks what timed out, and the Pub/Sub sends it again.
func ExampleTimeout() {
	router, pubsub := plainRouter()
	router.AddMiddleware(middleware.Timeout(time.Millisecond))
	done := make(chan struct{})
	deliveries := 0
	router.AddConsumerHandler("warehouse", "orders", pubsub, func(msg *message.Message) error {
		if deliveries++; deliveries == 1 {
			<-msg.Context().Done()
			fmt.Println("first delivery:", msg.Context().Err())
			return msg.Context().Err()
		}
		fmt.Println("second delivery: handled")
		close(done)
		return nil
	})
	handleOne(router, pubsub, message.NewMessage("order-1", nil), done)
	// Output:
	// first delivery: context deadline exceeded
	// second delivery: handled
}

// Recover alone on a plain Watermill router. A stage outside it sees an error, not a panic.
func ExampleRecover() {
	router, pubsub := plainRouter()
	done := make(chan struct{})
	router.AddMiddleware(
		func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				_, err := h(msg)
				fmt.Println(err)
				close(done)
				return nil, nil
			}
		},
		middleware.Recover(),
	)
	router.AddConsumerHandler("warehouse", "orders", pubsub, func(*message.Message) error {
		var totals map[string]int
		totals["order-1"] = 12
		return nil
	})
	handleOne(router, pubsub, message.NewMessage("order-1", nil), done)
	// Output: panic: assignment to entry in nil map
}

// Correlation alone on a plain Watermill router: two hops, one conversation.
func ExampleCorrelation() {
	router, pubsub := plainRouter()
	router.AddMiddleware(middleware.Correlation(middleware.CorrelationConfig{Source: "/billing"}))
	router.AddHandler("billing", "orders", pubsub, "invoices", pubsub, func(msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("invoice-1", nil)}, nil
	})
	done := make(chan struct{})
	router.AddConsumerHandler("mailing", "invoices", pubsub, func(msg *message.Message) error {
		fmt.Println("handled", msg.UUID)
		fmt.Println("conversation", event.CorrelationID(msg.Context()))
		fmt.Println("caused by", msg.Metadata.Get(event.MetaCausationID))
		close(done)
		return nil
	})
	handleOne(router, pubsub, message.NewMessage("order-1", nil), done)
	// Output:
	// handled invoice-1
	// conversation order-1
	// caused by order-1
}

// A publisher decorator on a plain Watermill router, for what a handler publishes by itself.
func ExampleCorrelationPublisher() {
	router, pubsub := plainRouter()
	router.AddMiddleware(middleware.Correlation(middleware.CorrelationConfig{}))
	publisher, err := middleware.CorrelationPublisher(pubsub)
	if err != nil {
		panic(err)
	}
	router.AddConsumerHandler("billing", "orders", pubsub, func(msg *message.Message) error {
		return publisher.Publish("invoices", message.NewMessageWithContext(msg.Context(), "invoice-1", nil))
	})
	done := make(chan struct{})
	router.AddConsumerHandler("mailing", "invoices", pubsub, func(msg *message.Message) error {
		fmt.Println(msg.UUID, "is of", msg.Metadata.Get(event.MetaCorrelationID))
		close(done)
		return nil
	})
	order := message.NewMessage("order-1", nil)
	order.Metadata.Set(event.MetaCorrelationID, "conversation-7")
	handleOne(router, pubsub, order, done)
	// Output: invoice-1 is of conversation-7
}

// The limits of a policy, for comparison with a broker's patience.
func ExampleRetryConfig_Budget() {
	policy := middleware.RetryConfig{MaxAttempts: 4, MaxElapsed: 20 * time.Second}
	fmt.Println(policy.Budget())
	// Output: 20s
}
