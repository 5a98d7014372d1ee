package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/headracetest/brokertest"
)

// Watermill's own suite. With one un-acked delivery the broker keeps the order that the suite calls guaranteed; with a
// window, which the suite knows nothing of, it delivers ahead of the acks.
func TestUniversal(t *testing.T) {
	_, seeds := fake(t)
	universal(t, seeds)
}

func TestUniversalOnKafka(t *testing.T) {
	universal(t, real(t))
}

func universal(t *testing.T, seeds []string) {
	for _, tt := range []struct {
		name       string
		window     int
		partitions int32
	}{{"one un-acked", 1, 1}, {"window", 100, 4}} {
		t.Run(tt.name, func(t *testing.T) {
			b := open(t, kafka.Config{
				Seeds: seeds, Options: fast(), Partitions: tt.partitions, Replicas: 1,
				NackDelay: time.Millisecond, MaxNackDelay: 20 * time.Millisecond, RevokeWait: time.Second,
			})
			group := func(t *testing.T, consumer string) (message.Publisher, message.Subscriber) {
				pub, err := b.Publisher()
				if err != nil {
					t.Fatal(err)
				}
				sub, err := b.Subscriber(brokers.Subscription{Consumer: consumer, Window: tt.window})
				if err != nil {
					t.Fatal(err)
				}
				return pub, sub
			}
			features := tests.Features{
				ConsumerGroups:                      true,
				GuaranteedOrder:                     tt.window == 1,
				GuaranteedOrderWithSingleSubscriber: tt.partitions == 1,
				Persistent:                          true,
			}
			tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) {
				return group(t, "universal")
			}, group)
			t.Run("a new group receives old messages", func(t *testing.T) {
				features.NewSubscriberReceivesOldMessages = true
				tests.TestNewSubscriberReceivesOldMessages(t, tests.TestContext{TestID: tests.NewTestID(), Features: features},
					func(t *testing.T) (message.Publisher, message.Subscriber) {
						return group(t, watermill.NewUUID())
					})
			})
		})
	}
}

func TestConformance(t *testing.T) {
	_, seeds := fake(t)
	conformance(t, seeds)
}

func TestConformanceOnKafka(t *testing.T) {
	conformance(t, real(t))
}

func conformance(t *testing.T, seeds []string) {
	brokertest.Run(t, brokertest.Suite{
		New: func(tb testing.TB) brokers.Broker {
			b, err := kafka.New(kafka.Config{
				Seeds: seeds, Options: fast(), Partitions: 1, Replicas: 1,
				NackDelay: 5 * time.Millisecond, MaxNackDelay: 50 * time.Millisecond, RevokeWait: time.Second,
			})
			if err != nil {
				tb.Fatal(err)
			}
			return b
		},
		PublishForeign: func(tb testing.TB, _ brokers.Broker, topic string, payload []byte) {
			cl := client(tb, seeds)
			r := cl.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Value: payload})
			cl.Close()
			if err := r.FirstErr(); err != nil {
				tb.Fatal(err)
			}
		},
	})
}

func client(tb testing.TB, seeds []string, opts ...kgo.Opt) *kgo.Client {
	tb.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(seeds...), kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(20), kgo.MetadataMinAge(50 * time.Millisecond),
	}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(cl.Close)
	return cl
}
