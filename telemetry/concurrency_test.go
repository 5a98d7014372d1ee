package telemetry_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/telemetry"
)

// Deliveries of many partitions and errors meet one consumer and one publisher at once, while their
// options are still being made.
func TestConcurrentDeliveriesAreAllCounted(t *testing.T) {
	k := newBundle(t, telemetry.Config{Classifier: classify.New(func(err error) (classify.Result, bool) {
		return classify.Result{Verdict: classify.VerdictRetry, ErrorType: err.Error()}, true
	})})
	c := k.Consumer(telemetry.ConsumerConfig{Topic: "orders"})
	pub := k.Publisher(discard{})
	const workers, each = 8, 50
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			h := c.Middleware(c.Attempt(func(msg *message.Message) ([]*message.Message, error) {
				return nil, fmt.Errorf("kind %s", msg.UUID)
			}))
			for i := range each {
				msg := newMessage(fmt.Sprint(i%10), brokers.Delivery{Partition: int32(i), Offset: -1}, "traceparent", upstream)
				_, _ = h(msg)
				_ = pub.Publish(fmt.Sprintf("topic-%d", w*i%300), plain("m"))
			}
		})
	}
	wg.Wait()
	metrics := k.collect(t)
	for _, name := range []string{"messaging.client.consumed.messages", "messaging.client.sent.messages"} {
		var got int64
		for _, p := range metrics[name].Data.(metricdata.Sum[int64]).DataPoints {
			got += p.Value
		}
		if got != workers*each {
			t.Errorf("%s: got %d, want %d", name, got, workers*each)
		}
	}
	if got := len(k.spans.GetSpans()); got != 2*workers*each {
		t.Errorf("got %d spans, want %d", got, 2*workers*each)
	}
}
