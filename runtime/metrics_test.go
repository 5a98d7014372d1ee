package runtime_test

import (
	"context"
	"net/http/httptest"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/testonly"
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
	want := map[string]float64{
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

// choosy is a broker that keeps messages for five days, and takes none for two topics.
type choosy struct{ brokers.Broker }

func (b choosy) Capabilities() brokers.Capabilities {
	c := b.Broker.Capabilities()
	c.Retention = 5 * 24 * time.Hour
	return c
}

func (b choosy) Publisher() (message.Publisher, error) {
	pub, err := b.Broker.Publisher()
	return choosyPublisher{pub}, err
}

type choosyPublisher struct{ message.Publisher }

func (p choosyPublisher) Publish(topic string, msgs ...*message.Message) error {
	switch topic {
	case "away":
		return errBroken
	case "refused":
		return classify.Permanent(errBroken)
	}
	return p.Publisher.Publish(topic, msgs...)
}

func TestNumbersOfOutboxAndInboxAreTheirs(t *testing.T) {
	const day = 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		b := newBench(t, func(c *runtime.Config) {
			c.Broker = choosy{c.Broker}
			c.InboxRetention, c.DeadLetterRetention = 12*day, 7*day
			c.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		})
		// Of the consumers with the inbox, the one that retries longest counts: for 2 x 30 s.
		store, patient := testonly.New(), quick
		patient.MaxRetryAfter = 30 * time.Second
		handle := func(context.Context, *testonly.Tx, order) error { return nil }
		runtime.HandleTx(b.rt.ConsumerWith(runtime.ConsumerConfig{Name: "billing", Topic: "orders", Policy: runtime.Policy{Retry: patient}}), "order.placed", store, handle)
		runtime.HandleTx(b.rt.Consumer("shipping", "orders"), "order.placed", store, handle)
		patient.MaxRetryAfter = 5 * time.Minute
		runtime.Handle(b.rt.ConsumerWith(runtime.ConsumerConfig{Name: "mailing", Topic: "mails", Policy: runtime.Policy{Retry: patient}}), "order.placed", handleNothing)

		box := outboxsuite.NewMemory()
		b.rt.Relay(box, outbox.RelayConfig{})
		tx := box.Begin()
		for _, err := range []error{
			outbox.Add(t.Context(), box, tx, "fine", message.NewMessage("1", nil)),
			outbox.Add(t.Context(), box, tx, "away", message.NewMessage("2", nil), message.NewMessage("3", nil)),
			outbox.Add(t.Context(), box, tx, "refused", message.NewMessage("4", nil)),
			outbox.AddAt(t.Context(), box, tx, time.Now().Add(time.Hour), "fine", message.NewMessage("5", nil), message.NewMessage("6", nil), message.NewMessage("7", nil)),
			tx.Commit(),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		b.publish("orders", placed(t, "1"))
		b.start()
		time.Sleep(30 * time.Second) // the relay counts every 10 s
		synctest.Wait()
		got := collect(t, reader)
		if oldest := got["headrace.outbox.oldest"]; oldest < 89 || oldest > 90 {
			t.Errorf("headrace.outbox.oldest is %v, want 90 at most a second ago", oldest)
		}
		for name, want := range map[string]float64{
			"headrace.outbox.depth":                 2,
			"headrace.outbox.dead":                  1,
			"headrace.outbox.delayed":               3,
			"headrace.outbox.publish.latency/count": 1,
			"headrace.outbox.publish.latency/sum":   60,
			"headrace.inbox.size":                   2,
			"headrace.inbox.oldest":                 30,
			"headrace.inbox.retention_margin":       -60,
		} {
			if v, there := got[name]; !there || v != want {
				t.Errorf("%s is %v, reported: %t; want %v", name, v, there, want)
			}
		}
		b.mustStop()
	})
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

// collect reads all metrics: the sum of their points. Of histograms it gives name/count and name/sum.
func collect(t *testing.T, reader *sdkmetric.ManualReader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				add(sums, m.Name, data.DataPoints)
			case metricdata.Gauge[int64]:
				add(sums, m.Name, data.DataPoints)
			case metricdata.Gauge[float64]:
				add(sums, m.Name, data.DataPoints)
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					sums[m.Name+"/count"] += float64(p.Count)
					sums[m.Name+"/sum"] += p.Sum
				}
			default:
				t.Errorf("%s is a %T, which collect does not know", m.Name, data)
			}
		}
	}
	return sums
}

func add[N int64 | float64](sums map[string]float64, name string, points []metricdata.DataPoint[N]) {
	for _, p := range points {
		sums[name] += float64(p.Value)
	}
}
