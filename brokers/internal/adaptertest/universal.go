package adaptertest

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/headrace-go/headrace/brokers"
)

// Suite is [Universal] or [Stress]. Each subscription holds at most window deliveries un-acked. ConsumerGroups and Persistent of the
// features follow from the broker; NewSubscriberReceivesOldMessages says that a new consumer gets what others have acked.
type Suite func(t *testing.T, b brokers.Broker, window int, features tests.Features)

// Universal runs Watermill's universal suite.
func Universal(t *testing.T, b brokers.Broker, window int, features tests.Features) {
	universal(t, tests.TestPubSub, b, window, features)
}

// Stress runs it STRESS_TEST_COUNT times at once, 10 by default. It is for tests with the build tag stress, which makes Watermill wait for
// longer.
func Stress(t *testing.T, b brokers.Broker, window int, features tests.Features) {
	universal(t, tests.TestPubSubStressTest, b, window, features)
}

// Windows runs a test in two forms. With one un-acked delivery an adapter keeps the order that Watermill's suite calls guaranteed; with
// a window, which the suite knows nothing of, deliveries run ahead of the acks.
func Windows(t *testing.T, run func(t *testing.T, window int)) {
	t.Run("one un-acked", func(t *testing.T) { run(t, 1) })
	t.Run("window", func(t *testing.T) { run(t, 100) })
}

func universal(t *testing.T, suite func(*testing.T, tests.Features, tests.PubSubConstructor, tests.ConsumerGroupPubSubConstructor),
	b brokers.Broker, window int, features tests.Features,
) {
	group := func(t *testing.T, consumer string) (message.Publisher, message.Subscriber) {
		sub, err := b.Subscriber(brokers.Subscription{Consumer: consumer, Window: window})
		if err != nil {
			t.Fatal(err)
		}
		return Publisher(t, b), sub
	}
	features.ConsumerGroups, features.Persistent = b.Capabilities().FanOut, true
	all := features
	all.NewSubscriberReceivesOldMessages = false // its test wants a group for each subscriber, the others one for all
	one := watermill.NewUUID()
	suite(t, all, func(t *testing.T) (message.Publisher, message.Subscriber) { return group(t, one) }, group)
	if features.NewSubscriberReceivesOldMessages {
		t.Run("a new group receives old messages", func(t *testing.T) {
			tests.TestNewSubscriberReceivesOldMessages(t, tests.TestContext{TestID: tests.NewTestID(), Features: features},
				func(t *testing.T) (message.Publisher, message.Subscriber) { return group(t, watermill.NewUUID()) })
		})
	}
}
