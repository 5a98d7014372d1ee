package memory_test

import (
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/memory"
)

func keyed(i int) *message.Message {
	m := message.NewMessage(strconv.Itoa(i), make([]byte, 256))
	m.Metadata["ce_partitionkey"] = strconv.Itoa(i % 1000)
	return m
}

func BenchmarkPublish(b *testing.B) {
	broker := newBroker(b, memory.Config{MaxMessages: 1 << 30, History: memory.NoHistory})
	pub, err := broker.Publisher()
	if err != nil {
		b.Fatal(err)
	}
	m := keyed(1)
	b.ReportAllocs()
	for b.Loop() {
		if err := pub.Publish("orders", m); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConsume publishes one message, receives it and acks it.
func BenchmarkConsume(b *testing.B) {
	broker := newBroker(b, memory.Config{History: memory.NoHistory})
	pub, err := broker.Publisher()
	if err != nil {
		b.Fatal(err)
	}
	sub, err := broker.Subscriber(brokers.Subscription{Consumer: "bench", Topic: "orders"})
	if err != nil {
		b.Fatal(err)
	}
	in, err := sub.Subscribe(b.Context(), "orders")
	if err != nil {
		b.Fatal(err)
	}
	batch := make([]*message.Message, 256)
	for i := range batch {
		batch[i] = keyed(i)
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if n == 0 {
			if err := pub.Publish("orders", batch...); err != nil {
				b.Fatal(err)
			}
			n = len(batch)
		}
		(<-in).Ack()
		n--
	}
}

// BenchmarkRouter is a bare Watermill router with a handler that does nothing.
func BenchmarkRouter(b *testing.B) {
	broker := newBroker(b, memory.Config{History: memory.NoHistory})
	pub, err := broker.Publisher()
	if err != nil {
		b.Fatal(err)
	}
	sub, err := broker.Subscriber(brokers.Subscription{Consumer: "bench", Topic: "orders"})
	if err != nil {
		b.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{}, 1<<16)
	router.AddConsumerHandler("bench", "orders", sub, func(*message.Message) error {
		done <- struct{}{}
		return nil
	})
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(b.Context()) }()
	<-router.Running()
	batch := make([]*message.Message, 256)
	for i := range batch {
		batch[i] = keyed(i)
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if n == 0 {
			if err := pub.Publish("orders", batch...); err != nil {
				b.Fatal(err)
			}
			n = len(batch)
		}
		<-done
		n--
	}
	b.StopTimer()
	if err := router.Close(); err != nil {
		b.Error(err)
	}
	if err := <-stopped; err != nil {
		b.Error(err)
	}
}
