package postgres_test

import (
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/postgres"
)

// events are n messages of 256 bytes and 100 keys.
func events(n int) []*message.Message {
	list := make([]*message.Message, n)
	for i := range list {
		m := message.NewMessage("0193b2a4-7c1e-7000-8000-"+strconv.Itoa(100_000_000_000+i), make([]byte, 256))
		m.Metadata["ce_id"] = m.UUID
		m.Metadata["ce_type"] = "order.placed"
		m.Metadata["ce_source"] = "/shop"
		m.Metadata["ce_partitionkey"] = "customer-" + strconv.Itoa(i%100)
		list[i] = m
	}
	return list
}

// benchConfig is what a service would have.
func benchConfig(e *env) postgres.Config {
	return postgres.Config{Pool: e.pool, Schema: e.schema}
}

// BenchmarkPublish publishes batches for one consumer; an operation is one message.
func BenchmarkPublish(b *testing.B) {
	for _, size := range []int{1, 100} {
		b.Run("batch="+strconv.Itoa(size), func(b *testing.B) {
			e := newEnv(b)
			broker := open(b, benchConfig(e))
			if err := broker.Register(b.Context(), "orders", "billing"); err != nil {
				b.Fatal(err)
			}
			pub, err := broker.Publisher()
			if err != nil {
				b.Fatal(err)
			}
			batch := events(size)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if n++; n%size == 0 {
					if err := pub.Publish("orders", batch...); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkConsume receives and acks messages that are in the table; an operation is one message.
func BenchmarkConsume(b *testing.B) {
	for _, window := range []int{1, 256} {
		b.Run("window="+strconv.Itoa(window), func(b *testing.B) {
			e := newEnv(b)
			broker := open(b, benchConfig(e))
			if err := broker.Register(b.Context(), "orders", "billing"); err != nil {
				b.Fatal(err)
			}
			pub, err := broker.Publisher()
			if err != nil {
				b.Fatal(err)
			}
			batch := events(1000)
			for range 20 {
				if err := pub.Publish("orders", batch...); err != nil {
					b.Fatal(err)
				}
			}
			sub, err := broker.Subscriber(brokers.Subscription{Consumer: "billing", Topic: "orders", Window: window})
			if err != nil {
				b.Fatal(err)
			}
			in, err := sub.Subscribe(b.Context(), "orders")
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				(<-in).Ack()
				if n++; n%len(batch) == 0 {
					b.StopTimer()
					if err := pub.Publish("orders", batch...); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			}
		})
	}
}
