package postgres_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/postgres"
)

// events are n messages of 256 bytes and 100 keys.
func events(n int) []*message.Message {
	list := make([]*message.Message, n)
	for i := range list {
		m := message.NewMessage(watermillID(i), make([]byte, 256))
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

// BenchmarkAgainstWatermillSQL publishes and consumes the same messages with this broker and with watermill-sql, in turns on
// one server, and reports how many times as long watermill-sql takes. It gets its default batch of 100 and no wait between
// its looks; both publish in batches of 100.
func BenchmarkAgainstWatermillSQL(b *testing.B) {
	const n, batch = 2_000, 100
	e := newEnv(b)
	list := events(n)

	ours := open(b, benchConfig(e))
	ourPub, err := ours.Publisher()
	if err != nil {
		b.Fatal(err)
	}
	ourSub, err := ours.Subscriber(brokers.Subscription{Consumer: "billing", Topic: "orders"})
	if err != nil {
		b.Fatal(err)
	}
	ourIn, err := ourSub.Subscribe(b.Context(), "orders")
	if err != nil {
		b.Fatal(err)
	}

	in := func(topic string) string { return pgx.Identifier{e.schema, "watermill_" + topic}.Sanitize() }
	schema := sql.DefaultPostgreSQLSchema{
		GenerateMessagesTableName: in,
		GeneratePayloadType:       func(string) string { return "BYTEA" },
	}
	offsets := sql.DefaultPostgreSQLOffsetsAdapter{GenerateMessagesOffsetsTableName: func(topic string) string { return in("offsets_" + topic) }}
	stockPub, err := sql.NewPublisher(sql.BeginnerFromPgx(e.pool), sql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	stockSub, err := sql.NewSubscriber(sql.BeginnerFromPgx(e.pool), sql.SubscriberConfig{
		ConsumerGroup: "billing", SchemaAdapter: schema, OffsetsAdapter: offsets, InitializeSchema: true,
		PollInterval: time.Millisecond,
	}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	stockIn, err := stockSub.Subscribe(b.Context(), "orders")
	if err != nil {
		b.Fatal(err)
	}
	defer stockSub.Close()

	publish := func(pub message.Publisher) time.Duration {
		began := time.Now()
		for i := 0; i < n; i += batch {
			if err := pub.Publish("orders", list[i:i+batch]...); err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(began)
	}
	consume := func(in <-chan *message.Message) time.Duration {
		began := time.Now()
		for range n {
			(<-in).Ack()
		}
		return time.Since(began)
	}
	var published, consumed [2]time.Duration
	for b.Loop() {
		published[0] += publish(ourPub)
		consumed[0] += consume(ourIn)
		published[1] += publish(stockPub)
		consumed[1] += consume(stockIn)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(published[1])/float64(published[0]), "x-publish")
	b.ReportMetric(float64(published[1]+consumed[1])/float64(published[0]+consumed[0]), "x-both")
	b.ReportMetric(float64(consumed[1])/float64(consumed[0]), "x-consume")
	b.ReportMetric(float64(b.N*n)/consumed[0].Seconds(), "consumed/s")
	b.ReportMetric(float64(b.N*n)/published[0].Seconds(), "published/s")
}

func watermillID(i int) string { return "0193b2a4-7c1e-7000-8000-" + strconv.Itoa(100_000_000_000+i) }
