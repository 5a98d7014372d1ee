package memory_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/memory"
)

func TestUniversal(t *testing.T) { universal(t, adaptertest.Universal) }

// universal runs Watermill's own suite.
func universal(t *testing.T, suite adaptertest.Suite) {
	adaptertest.Windows(t, func(t *testing.T, window int) {
		suite(t, newBroker(t, memory.Config{}), window, tests.Features{
			GuaranteedOrderWithSingleSubscriber: true,
			GuaranteedOrder:                     window == 1,
			NewSubscriberReceivesOldMessages:    true,
		})
	})
}

func newBroker(tb testing.TB, config memory.Config) *memory.Broker {
	tb.Helper()
	b, err := memory.New(config)
	return adaptertest.Opened(tb, b, err)
}
