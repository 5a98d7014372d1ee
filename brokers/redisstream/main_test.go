package redisstream_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/redisstream"
	"github.com/headrace-go/headrace/headracetest/brokertest"
	"github.com/headrace-go/headrace/internal/leak"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// options are those of a client of the real server.
func options(tb testing.TB) *redis.Options {
	tb.Helper()
	o, err := redis.ParseURL(testserver.Redis(tb))
	if err != nil {
		tb.Fatal(err)
	}
	o.PoolSize = 200 // the suites open many subscriptions, each of which waits on a connection
	return o
}

// client returns a client of the real server, which ends with the test.
func client(tb testing.TB) *redis.Client {
	tb.Helper()
	return connect(tb, options(tb))
}

func connect(tb testing.TB, o *redis.Options) *redis.Client {
	tb.Helper()
	c := redis.NewClient(o)
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("close the client: %v", err)
		}
	})
	return c
}

// open returns a broker with short times on a client of its own, unless config has one.
func open(tb testing.TB, config redisstream.Config) *redisstream.Broker {
	tb.Helper()
	if config.Client == nil {
		config.Client = client(tb)
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if config.Patience == 0 {
		config.Patience = time.Second
	}
	config.ClaimInterval = 50 * time.Millisecond
	config.Block = 20 * time.Millisecond
	config.NackDelay, config.MaxNackDelay = 5*time.Millisecond, 50*time.Millisecond
	b, err := redisstream.New(config)
	return adaptertest.Opened(tb, b, err)
}

func TestSuite(t *testing.T) {
	brokertest.Run(t, brokertest.Suite{
		New: func(tb testing.TB) brokers.Broker { return open(tb, redisstream.Config{}) },
		PublishForeign: func(tb testing.TB, _ brokers.Broker, topic string, payload []byte) {
			if err := client(tb).XAdd(tb.Context(), &redis.XAddArgs{Stream: topic, Values: []any{"payload", payload}}).Err(); err != nil {
				tb.Fatal(err)
			}
		},
		PublishUndecodable: func(tb testing.TB, _ brokers.Broker, topic string) []byte {
			if err := client(tb).XAdd(tb.Context(), &redis.XAddArgs{
				Stream: topic, Values: []any{"payload", "\xff\x00", "payload", "another"},
			}).Err(); err != nil {
				tb.Fatal(err)
			}
			return []byte("\xff\x00")
		},
		Behind: func(tb testing.TB) (brokers.Broker, brokertest.Server) {
			o := options(tb)
			p := testserver.NewProxy(tb, o.Addr)
			o.Addr = p.Addr()
			return open(tb, redisstream.Config{Client: connect(tb, o)}), p
		},
		Shared:             true,
		UnorderedAfterKill: true, // without Config.Member
	})
}

func TestUniversal(t *testing.T) { universal(t, adaptertest.Universal) }

// universal runs Watermill's own suite.
func universal(t *testing.T, suite adaptertest.Suite) {
	adaptertest.Windows(t, func(t *testing.T, window int) {
		suite(t, open(t, redisstream.Config{}), window, tests.Features{
			GuaranteedOrderWithSingleSubscriber: true,
			NewSubscriberReceivesOldMessages:    true,
		})
	})
}
