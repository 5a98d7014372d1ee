package kafka_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/headracetest/brokertest"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestUniversal(t *testing.T) {
	_, seeds := fake(t)
	universal(t, seeds, adaptertest.Universal)
}

func TestUniversalOnKafka(t *testing.T) { universal(t, real(t), adaptertest.Universal) }

// universal runs Watermill's own suite.
func universal(t *testing.T, seeds []string, suite adaptertest.Suite) {
	adaptertest.Windows(t, func(t *testing.T, window int) {
		partitions := int32(4)
		if window == 1 {
			partitions = 1
		}
		b := open(t, kafka.Config{
			Seeds: seeds, Options: fast(), Partitions: partitions, Replicas: 1,
			NackDelay: time.Millisecond, MaxNackDelay: 20 * time.Millisecond, RevokeWait: time.Second,
		})
		suite(t, b, window, tests.Features{
			GuaranteedOrderWithSingleSubscriber: partitions == 1,
			GuaranteedOrder:                     window == 1,
			NewSubscriberReceivesOldMessages:    true,
		})
	})
}

func TestConformance(t *testing.T) {
	_, seeds := fake(t)
	brokertest.Run(t, conformance(seeds))
}

func TestConformanceOnKafka(t *testing.T) {
	seeds := real(t)
	suite := conformance(seeds)
	suite.Shared = true
	suite.Behind = func(tb testing.TB) (brokers.Broker, brokertest.Server) {
		p := testserver.NewProxy(tb, seeds[0])
		// Brokers tell their own addresses: each connection goes to the proxy, whatever the address.
		dial := kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, p.Addr())
		})
		return conforming(tb, seeds[:1], dial), p
	}
	brokertest.Run(t, suite)
}

func conforming(tb testing.TB, seeds []string, options ...kgo.Opt) *kafka.Broker {
	tb.Helper()
	b, err := kafka.New(kafka.Config{
		Seeds: seeds, Options: append(fast(), options...), Partitions: 1, Replicas: 1,
		NackDelay: 5 * time.Millisecond, MaxNackDelay: 50 * time.Millisecond, RevokeWait: time.Second,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func conformance(seeds []string) brokertest.Suite {
	produce := func(tb testing.TB, record *kgo.Record) {
		cl := client(tb, seeds)
		r := cl.ProduceSync(context.Background(), record)
		cl.Close()
		if err := r.FirstErr(); err != nil {
			tb.Fatal(err)
		}
	}
	return brokertest.Suite{
		New: func(tb testing.TB) brokers.Broker { return conforming(tb, seeds) },
		PublishForeign: func(tb testing.TB, _ brokers.Broker, topic string, payload []byte) {
			produce(tb, &kgo.Record{Topic: topic, Value: payload})
		},
		PublishHeaderTwice: func(tb testing.TB, _ brokers.Broker, topic, name, first, second string) {
			produce(tb, &kgo.Record{Topic: topic, Value: []byte("0"), Headers: []kgo.RecordHeader{
				{Key: name, Value: []byte(first)}, {Key: name, Value: []byte(second)},
			}})
		},
		LargeIsRefused: true, // 1 MB with its headers is more than a batch holds by default
	}
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
