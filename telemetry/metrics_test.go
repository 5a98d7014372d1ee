package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/telemetry"
)

// TestMetrics is the contract of all metrics: names, units, kinds, buckets, attributes.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newBundle(t, telemetry.Config{System: "kafka"})
		c := k.Consumer(telemetry.ConsumerConfig{Consumer: "billing.orders", Topic: "orders"})
		h := c.Middleware
		deliver := func(h message.HandlerFunc) {
			d := brokers.Delivery{Topic: "orders", Partition: 3, Offset: 42}
			_, _ = h(newMessage("m1", d))
		}

		deliver(h(giving(flight.Handled)))
		deliver(h(giving(flight.Committed)))
		deliver(h(giving(flight.Committed)))
		deliver(h(giving(flight.Duplicate)))
		deliver(h(giving(flight.Stale)))
		deliver(h(giving(flight.Ignored)))
		deliver(h(giving(flight.Dropped)))
		deliver(h(giving(flight.Parked)))
		deliver(h(giving(flight.Deferred)))
		deliver(h(func(msg *message.Message) ([]*message.Message, error) {
			f := flight.From(msg.Context())
			f.Delivery.Delay = func(time.Duration) bool { return true }
			f.Delay(time.Minute) // by the broker
			return nil, errBroken
		}))
		deliver(h(retrying(c, 3, failing(2, flight.Committed))))
		deliver(h(func(*message.Message) ([]*message.Message, error) { return nil, errBroken }))
		deliver(h(func(*message.Message) ([]*message.Message, error) { return nil, classify.Stop(errBroken) }))
		deliver(h(func(msg *message.Message) ([]*message.Message, error) {
			flight.Give(msg.Context(), flight.DeadLettered)
			c.DeadLettered(msg.Context(), "ledger_closed", errBroken.Error())
			return nil, nil
		}))
		again := brokers.Delivery{Topic: "orders", Partition: 4, Count: 2, Time: time.Now().Add(-5 * time.Second)}
		_, _ = h(giving(flight.Handled))(newMessage("m1", again))
		ahead := brokers.Delivery{Topic: "orders", Partition: 4, Count: 1, Time: time.Now().Add(time.Hour)}
		_, _ = h(giving(flight.Handled))(newMessage("m2", ahead))

		pub := &recorder{}
		p := k.Publisher(pub)
		_ = p.Publish("invoices", plain("m1"), plain("m2"))
		pub.err = errBroken
		_ = p.Publish("invoices", plain("m3"))

		stop, err := c.Observe(func() telemetry.ConsumerStats {
			return telemetry.ConsumerStats{
				InFlight: 3, Waiting: 2, Blocked: 1, Oldest: 1500 * time.Millisecond, Held: 2, Paused: true,
				OldestAge: time.Minute, AgeKnown: true, RetentionMargin: time.Hour, MarginKnown: true, Lag: 7, LagKnown: true,
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		c.Paused(t.Context(), "outage")
		stopParked, err := c.ObserveParked(func(context.Context) (telemetry.BacklogStats, error) {
			return telemetry.BacklogStats{Keys: 2, Depth: 5}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		stopDead, err := c.ObserveDeadLetters(func(context.Context) (telemetry.DeadLetterStats, error) {
			return telemetry.DeadLetterStats{Depth: 4, Oldest: time.Hour, States: map[string]int64{"new": 4, "discarded": 2}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		stopOutbox, err := k.ObserveOutbox("main", func(context.Context) (telemetry.OutboxStats, error) {
			return telemetry.OutboxStats{Depth: 12, Oldest: 90 * time.Second, Dead: 3, Delayed: 4, Buckets: 32, Relays: 2, Lost: 1}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		stopInbox, err := k.ObserveInbox("main", func(context.Context) (telemetry.InboxStats, error) {
			return telemetry.InboxStats{Claims: 1000, Oldest: time.Hour, Margin: -time.Minute, MarginKnown: true}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		k.OutboxPublished(t.Context(), "orders", 20*time.Millisecond)
		golden(t, "metrics", describeMetrics(k.collect(t)))

		if err := errors.Join(stop(), stopOutbox(), stopInbox(), stopParked(), stopDead()); err != nil {
			t.Errorf("stop: %v", err)
		}
		for _, name := range []string{"headrace.consumer.in_flight", "headrace.outbox.depth", "headrace.inbox.size"} {
			if m, ok := k.collect(t)[name]; ok {
				t.Errorf("%s is reported after stop: %v", name, m.Data)
			}
		}
	})
}

// The conventions ask for these buckets, in these instruments; no view is needed to get them.
func TestProcessDurationIsAHistogramInSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newBundle(t, telemetry.Config{})
		c := k.Consumer(telemetry.ConsumerConfig{Topic: "orders"})
		_, _ = c.Middleware(giving(flight.Committed))(newMessage("m1", plainDelivery()))
		want := metricdata.Metrics{
			Name:        "messaging.process.duration",
			Description: "Duration of processing operation.",
			Unit:        "s",
			Data: metricdata.Histogram[float64]{
				Temporality: metricdata.CumulativeTemporality,
				DataPoints: []metricdata.HistogramDataPoint[float64]{{
					Attributes: attribute.NewSet(
						attribute.String("messaging.system.name", "watermill"),
						attribute.String("messaging.operation.name", "process"),
						attribute.String("messaging.destination.name", "orders"),
						attribute.String("headrace.outcome", "committed"),
					),
					Count:        1,
					Bounds:       []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10},
					BucketCounts: []uint64{0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
					Min:          metricdata.NewExtrema(.01),
					Max:          metricdata.NewExtrema(.01),
					Sum:          .01,
				}},
			},
		}
		metricdatatest.AssertEqual(t, want, k.collect(t)["messaging.process.duration"],
			metricdatatest.IgnoreTimestamp(), metricdatatest.IgnoreExemplars())
	})
}

func TestOldNamesOnMetricsWithDup(t *testing.T) {
	for optIn, want := range map[string]bool{"": false, "messaging": false, "messaging/dup": true, "http,messaging/dup , x": true} {
		t.Run(optIn, func(t *testing.T) {
			t.Setenv("OTEL_SEMCONV_STABILITY_OPT_IN", optIn)
			k := newBundle(t, telemetry.Config{System: "nats"})
			_ = k.Publisher(&recorder{}).Publish("orders", plain("m1"))
			set := k.collect(t)["messaging.client.sent.messages"].Data.(metricdata.Sum[int64]).DataPoints[0].Attributes
			if old, ok := set.Value("messaging.system"); ok != want || ok && old.AsString() != "nats" {
				t.Errorf("OTEL_SEMCONV_STABILITY_OPT_IN=%q: got messaging.system %q, %t; want %t", optIn, old.AsString(), ok, want)
			}
			if name, ok := set.Value("messaging.system.name"); !ok || name.AsString() != "nats" {
				t.Errorf("OTEL_SEMCONV_STABILITY_OPT_IN=%q: got messaging.system.name %q, want nats", optIn, name.AsString())
			}
		})
	}
}

// Partition ids multiply the sets by hundreds; the SDK drops what is beyond 2,000.
func TestNoMetricHasAPartitionOrMessageID(t *testing.T) {
	k := newBundle(t, telemetry.Config{System: "kafka"})
	c := k.Consumer(telemetry.ConsumerConfig{Consumer: "billing", Topic: "orders"})
	for p := range int32(50) {
		d := brokers.Delivery{Topic: "orders", Partition: p, Offset: 1, Count: 3, Time: time.Now()}
		_, _ = c.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(newMessage(fmt.Sprint(p), d))
	}
	for name, m := range k.collect(t) {
		n := strings.Count(describeMetrics(map[string]metricdata.Metrics{name: m}), "messaging.system.name")
		if n != 1 {
			t.Errorf("%s has %d attribute sets after 50 partitions, want 1", name, n)
		}
	}
}

// A rule of the application's own puts an order number into the error type.
func TestErrorTypesAreBounded(t *testing.T) {
	n := 0
	k := newBundle(t, telemetry.Config{Classifier: classify.New(func(error) (classify.Result, bool) {
		n++
		return classify.Result{Verdict: classify.VerdictPoison, ErrorType: fmt.Sprintf("order %d", n)}, true
	})})
	c := k.Consumer(telemetry.ConsumerConfig{Topic: "orders"})
	for range 1000 {
		_, _ = c.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errBroken })(newMessage("m1", plainDelivery()))
	}
	points := k.collect(t)["messaging.client.consumed.messages"].Data.(metricdata.Sum[int64]).DataPoints
	var total, other int64
	for _, p := range points {
		total += p.Value
		if v, _ := p.Attributes.Value("error.type"); v.AsString() == "_OTHER" {
			other = p.Value
		}
	}
	if len(points) > 101 || total != 1000 || other != 900 {
		t.Errorf("got %d error types, %d messages, %d of them _OTHER; want at most 101, 1000, 900", len(points), total, other)
	}
}

func TestUnknownLagIsNotReported(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	c := k.Consumer(telemetry.ConsumerConfig{Topic: "orders"})
	if _, err := c.Observe(func() telemetry.ConsumerStats { return telemetry.ConsumerStats{InFlight: 1} }); err != nil {
		t.Fatal(err)
	}
	metrics := k.collect(t)
	if m, ok := metrics["headrace.consumer.lag"]; ok {
		t.Errorf("got %v, want no lag", m)
	}
	if _, ok := metrics["headrace.consumer.in_flight"]; !ok {
		t.Error("in_flight is missing")
	}
}

// The database is away: the outbox's depth is unknown, not zero.
func TestUnreadableOutboxIsNotReported(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	if _, err := k.ObserveOutbox("", func(context.Context) (telemetry.OutboxStats, error) {
		return telemetry.OutboxStats{}, errBroken
	}); err != nil {
		t.Fatal(err)
	}
	var rm metricdata.ResourceMetrics
	err := k.reader.Collect(context.Background(), &rm)
	if !errors.Is(err, errBroken) || !strings.Contains(err.Error(), "outbox") {
		t.Errorf("got error %v, want the reader's, naming the outbox", err)
	}
	if len(rm.ScopeMetrics) != 0 {
		t.Errorf("got %v, want nothing", rm.ScopeMetrics)
	}
}

func TestObserveRefusesNil(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	if _, err := k.Consumer(telemetry.ConsumerConfig{Consumer: "billing"}).Observe(nil); err == nil || !strings.Contains(err.Error(), "billing") {
		t.Errorf("got error %v, want one that names the consumer", err)
	}
	if _, err := k.Consumer(telemetry.ConsumerConfig{Consumer: "billing"}).ObserveParked(nil); err == nil || !strings.Contains(err.Error(), "parked") {
		t.Errorf("ObserveParked(nil) = %v, want an error that says so", err)
	}
	if _, err := k.ObserveOutbox("main", nil); err == nil || !strings.Contains(err.Error(), `outbox "main"`) {
		t.Errorf("got error %v, want one that names the outbox", err)
	}
	if _, err := k.ObserveInbox("main", nil); err == nil || !strings.Contains(err.Error(), `inbox "main"`) {
		t.Errorf("got error %v, want one that names the inbox", err)
	}
}

func TestNewNamesTheBadField(t *testing.T) {
	_, err := telemetry.New(telemetry.Config{Attempts: 9})
	if err == nil || !strings.Contains(err.Error(), "Attempts is 9") {
		t.Errorf("got error %v, want one with the field and the value", err)
	}
}

// Hooks on a plain router, without the middleware outside, still count.
func TestHooksWithoutMiddlewareCount(t *testing.T) {
	k := newBundle(t, telemetry.Config{})
	c := k.Consumer(telemetry.ConsumerConfig{Topic: "orders"})
	c.Retried(context.Background(), time.Second, "timeout")
	c.DeadLettered(context.Background(), "ledger_closed", errBroken.Error())
	metrics := k.collect(t)
	for _, name := range []string{"headrace.consumer.retry.delay", "headrace.consumer.dead_letters"} {
		if _, ok := metrics[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
}
