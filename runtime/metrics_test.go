package runtime_test

import (
	"net/http/httptest"
	"regexp"
	"testing"
	"time"

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
		"headrace.outbox.dead":               0,
		"headrace.outbox.buckets":            64,
		"headrace.outbox.relays":             1,
		"headrace.outbox.leases_lost":        0,
		"headrace.inbox.size":                1,
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

// progressing is a broker that knows its partitions.
type progressing struct{ lagging }

func (progressing) Progress(consumer, topic string) []brokers.Progress {
	return []brokers.Progress{{
		Topic: topic, Partition: 3, Lag: 40, InFlight: 2, Returned: 1, Waiting: 5, Blocked: 1, Paused: true,
		OldestSince: time.Now().Add(-time.Minute), NextReturn: time.Now().Add(time.Minute),
	}}
}

func TestHealthTellsWhatTheBrokerKnows(t *testing.T) {
	b := newBench(t, func(c *runtime.Config) { c.Broker = progressing{lagging{c.Broker}} })
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", handleNothing)
	b.start()
	<-b.rt.Running()
	w := httptest.NewRecorder()
	b.rt.Health().ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
	body := w.Body.String()
	for _, want := range []string{
		`"lag":42`, `"topic":"orders","partition":3,"lag":40,"in_flight":2,"waiting":5,"returned":1,"blocked_keys":1`,
		`"oldest_incomplete_seconds":(59|60)`, `"next_return_in_seconds":(59|60)`, `"paused":true`,
	} {
		if !regexp.MustCompile(want).MatchString(body) {
			t.Errorf("/readyz: %s; want %s in it", body, want)
		}
	}
	b.mustStop()
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
