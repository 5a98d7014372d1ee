package jetstream_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/internal/leak"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func TestUniversal(t *testing.T) { universal(t, adaptertest.Universal) }

// universal runs Watermill's own suite.
func universal(t *testing.T, suite adaptertest.Suite) {
	for _, tt := range []struct {
		name   string
		window int
		double bool
		server bool
	}{
		{"one un-acked", 1, false, false},
		{"window", 100, false, false},
		{"window, double ack", 100, true, false},
		{"window, server", 100, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := jetstream.Config{DoubleAck: tt.double, NackDelay: time.Millisecond, MaxNackDelay: 20 * time.Millisecond}
			var b brokers.Broker
			if tt.server {
				config.URL = testserver.NATS(t)
				b = openBroker(t, config)
			} else {
				b = newBroker(t, config)
			}
			suite(t, b, tt.window, tests.Features{
				GuaranteedOrderWithSingleSubscriber: true,
				GuaranteedOrder:                     tt.window == 1,
				NewSubscriberReceivesOldMessages:    true,
			})
		})
	}
}

// newBroker returns a broker on a server of its own. Both end with the test.
func newBroker(tb testing.TB, config jetstream.Config) *embedded.Broker {
	tb.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(tb.Output(), nil))
	}
	b, err := embedded.New(embedded.Config{Dir: tb.TempDir(), Logger: config.Logger}, config)
	return adaptertest.Opened(tb, b, err)
}
