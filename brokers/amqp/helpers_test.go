package amqp_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
)

// quiet is for how long nothing must come.
const quiet = 200 * time.Millisecond

// publishAll publishes n numbers in order, in calls of some, and what was not stored again.
func publishAll(t testing.TB, b *amqp.Broker, topic string, n, batch int) {
	t.Helper()
	pub := adaptertest.Publisher(t, b)
	for i := 0; i < n; {
		size := min(batch, n-i)
		err := pub.Publish(topic, adaptertest.Numbered("", i, size)...)
		failed, ok := errors.AsType[*brokers.PublishError](err)
		switch {
		case err == nil:
			i += size
		case ok:
			i += failed.Failed[0].Index // the rest again, in order
		default:
			t.Errorf("Publish: %v", err)
			return
		}
	}
}

func sorted(texts []string) []string {
	return slices.Sorted(slices.Values(texts))
}
