package amqp_test

import (
	"crypto/rand"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/internal/testserver"
)

// benchTopic makes a topic with a consumer, and n messages for it.
func benchTopic(b *testing.B, n int) (*amqp.Broker, string) {
	b.Helper()
	broker, topic := open(b, amqp.Config{PublishTimeout: time.Minute}), rand.Text()
	if err := broker.Register(b.Context(), topic, "c"); err != nil {
		b.Fatal(err)
	}
	messages := adaptertest.Numbered("", 0, n)
	for _, m := range messages {
		m.Payload = make([]byte, 200)
	}
	adaptertest.Publish(b, broker, topic, messages...)
	return broker, topic
}

const benchWindow = 256

// BenchmarkConsume acks what comes: with this adapter, with the client alone, and with the stock adapter. An operation is a message.
func BenchmarkConsume(b *testing.B) {
	b.Run("headrace", func(b *testing.B) {
		broker, topic := benchTopic(b, b.N)
		b.ReportAllocs()
		b.ResetTimer()
		_, in := adaptertest.Subscribe(b, broker, "c", topic, benchWindow)
		for range b.N {
			(<-in).Ack()
		}
	})
	b.Run("amqp091-go", func(b *testing.B) {
		_, topic := benchTopic(b, b.N)
		ch := channel(b, testserver.AMQP(b))
		if err := ch.Qos(benchWindow, 0, false); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		b.ResetTimer()
		in, err := ch.Consume(topic+"/c", "", false, false, false, false, nil)
		if err != nil {
			b.Fatal(err)
		}
		for range b.N {
			if err := (<-in).Ack(false); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("watermill-amqp", func(b *testing.B) {
		_, topic := benchTopic(b, b.N)
		sub := stockSubscriber(b, topic)
		b.ReportAllocs()
		b.ResetTimer()
		in, err := sub.Subscribe(b.Context(), topic)
		if err != nil {
			b.Fatal(err)
		}
		for range b.N {
			(<-in).Ack()
		}
	})
}

// BenchmarkHandler5ms has handlers that take 5 ms each, as many at once as are delivered. An operation is a message.
func BenchmarkHandler5ms(b *testing.B) {
	handle := func(b *testing.B, in <-chan *message.Message) {
		var running sync.WaitGroup
		for range b.N {
			m := <-in
			running.Go(func() {
				<-time.After(5 * time.Millisecond)
				m.Ack()
			})
		}
		running.Wait()
	}
	b.Run("headrace", func(b *testing.B) {
		broker, topic := benchTopic(b, b.N)
		b.ReportAllocs()
		b.ResetTimer()
		_, in := adaptertest.Subscribe(b, broker, "c", topic, benchWindow)
		handle(b, in)
	})
	b.Run("watermill-amqp", func(b *testing.B) {
		_, topic := benchTopic(b, b.N)
		sub := stockSubscriber(b, topic)
		b.ReportAllocs()
		b.ResetTimer()
		in, err := sub.Subscribe(b.Context(), topic)
		if err != nil {
			b.Fatal(err)
		}
		handle(b, in)
	})
}

// stockSubscriber reads the queue of consumer c, which is there.
func stockSubscriber(b *testing.B, topic string) *stock.Subscriber {
	b.Helper()
	config := stock.NewDurablePubSubConfig(testserver.AMQP(b), func(string) string { return topic + "/c" })
	config.Consume.Qos.PrefetchCount = benchWindow
	config.TopologyBuilder = asItIs{}
	sub, err := stock.NewSubscriber(config, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := sub.Close(); err != nil {
			b.Error(err)
		}
	})
	return sub
}

// asItIs leaves the topology alone.
type asItIs struct{}

func (asItIs) BuildTopology(*amqp091.Channel, stock.BuildTopologyParams, stock.Config, watermill.LoggerAdapter) error {
	return nil
}
func (asItIs) ExchangeDeclare(*amqp091.Channel, string, stock.Config) error { return nil }

// BenchmarkPublish publishes in calls of some messages each, confirmed, and with eight callers at once. An operation is a message.
func BenchmarkPublish(b *testing.B) {
	for _, batch := range []int{1, 100} {
		b.Run("batch "+strconv.Itoa(batch), func(b *testing.B) {
			broker, topic := benchTopic(b, 1)
			pub := adaptertest.Publisher(b, broker)
			messages := adaptertest.Numbered("", 0, batch)
			for _, m := range messages {
				m.Payload = make([]byte, 200)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += batch {
				if err := pub.Publish(topic, messages[:min(batch, b.N-n)]...); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("8 callers", func(b *testing.B) {
		broker, topic := benchTopic(b, 1)
		pub := adaptertest.Publisher(b, broker)
		b.ReportAllocs()
		b.SetParallelism(4) // times GOMAXPROCS
		b.RunParallel(func(pb *testing.PB) {
			m := message.NewMessage("id", make([]byte, 200))
			for pb.Next() {
				if err := pub.Publish(topic, m); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}
