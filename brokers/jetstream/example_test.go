package jetstream_test

import (
	"context"
	"fmt"
	"os"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
)

// A program starts with a server of its own, and changes one line to use a cluster:
//
//	broker, err := jetstream.New(jetstream.Config{URL: "nats://nats-1:4222,nats://nats-2:4222", Replicas: 3})
func Example() {
	dir, err := os.MkdirTemp("", "headrace")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	broker, err := embedded.New(embedded.Config{Dir: dir}, jetstream.Config{})
	if err != nil {
		panic(err)
	}
	defer broker.Close()

	pub, err := broker.Publisher()
	if err != nil {
		panic(err)
	}
	if err := pub.Publish("orders", message.NewMessage("order-1", []byte("hello"))); err != nil {
		panic(err)
	}
	sub, err := broker.Subscriber(brokers.Subscription{Consumer: "billing", Topic: "orders", Window: 16})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	messages, err := sub.Subscribe(ctx, "orders")
	if err != nil {
		panic(err)
	}
	m := <-messages
	d := brokers.DeliveryOf(m.Context())
	fmt.Printf("%s %s, offset %d, delivery %d\n", m.UUID, m.Payload, d.Offset, d.Count)
	m.Ack()
	// Output: order-1 hello, offset 1, delivery 1
}
