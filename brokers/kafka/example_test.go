package kafka_test

import (
	"context"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/kafka"
)

// A tombstone and an event of one key, published and read again.
func Example() {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1)) // a cluster in the process, for tests
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	broker, err := kafka.New(kafka.Config{Seeds: cluster.ListenAddrs(), Partitions: 1, Replicas: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()

	pub, err := broker.Publisher()
	if err != nil {
		log.Fatal(err)
	}
	placed := message.NewMessage("1", []byte("placed"))
	placed.Metadata.Set("ce_subject", "order-7")
	removed := message.NewMessage("2", nil)
	removed.Metadata.Set("ce_subject", "order-7")
	if err := pub.Publish("orders", placed, removed); err != nil {
		log.Fatal(err)
	}

	sub, err := broker.Subscriber(brokers.Subscription{Consumer: "billing.orders", Topic: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	in, err := sub.Subscribe(context.Background(), "orders")
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		m := <-in
		d := brokers.DeliveryOf(m.Context())
		fmt.Printf("%s offset %d: %q, tombstone: %v\n", d.Key, d.Offset, m.Payload, m.Payload == nil)
		m.Ack()
	}
	// Output:
	// order-7 offset 0: "placed", tombstone: false
	// order-7 offset 1: "", tombstone: true
}

// TLS and SASL; whatever else franz-go can do goes into Options.
func ExampleNew_sasl() {
	_, err := kafka.New(kafka.Config{
		Seeds:  []string{"localhost:9092"},
		SASL:   []sasl.Mechanism{scram.Auth{User: "billing", Pass: "secret"}.AsSha512Mechanism()},
		Window: -1,
	})
	fmt.Println(err)
	// Output: kafka: Config.Window is -1, want at least 1
}
