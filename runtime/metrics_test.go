package runtime_test

import (
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/runtime"
)

// lagging is a broker that knows how far its consumers are behind.
type lagging struct{ brokers.Broker }

func (lagging) Lag(consumer, topic string) (int64, bool) {
	return 42, consumer == "billing" && topic == "orders"
}

func TestStateOfConsumersAndOutboxesIsReadableAsMetrics(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	b := newBench(t, func(c *runtime.Config) {
		c.Broker = lagging{c.Broker}
		c.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	})
	store := openStore(t)
	runtime.HandleTx(b.rt.Consumer("billing", "orders"), "order.placed", store, insertEffect)
	b.rt.Relay(store.Outbox(), outbox.RelayConfig{})
	b.publish("orders", placed(t, "1"), placed(t, "1"))
	b.start()
	want := map[string]int64{
		"headrace.consumer.lag":              42,
		"headrace.consumer.in_flight":        0,
		"headrace.consumer.waiting":          0,
		"headrace.consumer.blocked":          0,
		"headrace.outbox.depth":              0,
		"headrace.consumer.duplicates":       1,
		"messaging.client.consumed.messages": 2,
	}
	b.eventually("the metrics are as wanted", func() bool {
		got := collect(t, reader)
		for name, value := range want {
			if v, there := got[name]; !there || v != value {
				return false
			}
		}
		return true
	})
	b.mustStop()
	if _, there := collect(t, reader)["headrace.consumer.lag"]; there {
		t.Error("the lag is still reported after Run has ended")
	}
}

// collect reads all whole-number metrics: the sum of their points.
func collect(t *testing.T, reader *sdkmetric.ManualReader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	sums := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			var points []metricdata.DataPoint[int64]
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				points = data.DataPoints
			case metricdata.Gauge[int64]:
				points = data.DataPoints
			default:
				continue
			}
			for _, p := range points {
				sums[m.Name] += p.Value
			}
		}
	}
	return sums
}
