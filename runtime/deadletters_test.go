package runtime_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	attr "go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/runtime"
)

func letterStore(t *testing.T, table deadletter.Table) *deadletter.Store {
	t.Helper()
	letters, err := deadletter.NewStore(table, deadletter.Protection{})
	if err != nil {
		t.Fatal(err)
	}
	return letters
}

// points are those of a metric by one attribute, ages as whole hours.
func points(t *testing.T, reader *sdkmetric.ManualReader, name, attribute string) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					v, _ := p.Attributes.Value(attr.Key(attribute))
					got[v.AsString()] = p.Value
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					v, _ := p.Attributes.Value(attr.Key(attribute))
					got[v.AsString()] = int64(p.Value / 3600)
				}
			}
		}
	}
	return got
}

// Nobody reported the dead letters that the alarms are about, and nobody deleted what was done with.
func TestDeadLettersAreReportedAndKept(t *testing.T) {
	store := openStore(t)
	letters := letterStore(t, store.DeadLetters())
	reader := sdkmetric.NewManualReader()
	b := newBench(t, func(c *runtime.Config) {
		c.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	})
	for _, name := range []string{"billing", "mails"} {
		runtime.Handle(b.rt.Consumer(name, "orders"), "order.placed", func(_ context.Context, o order) error {
			if name == "billing" {
				return classify.Permanent(errBroken)
			}
			return nil
		})
	}
	index := b.rt.Consumer("index", "orders.DLT")
	runtime.HandleDeadLettersTx(index, store, deadletter.Index(store, deadletter.Protection{}))
	b.rt.DeadLetters(letters, runtime.DeadLetterConfig{Retention: time.Nanosecond})
	for i := range 3 {
		b.publish("orders", placed(t, fmt.Sprint(i)))
	}
	b.start()
	b.eventually("3 letters are indexed", func() bool { return index.Stats().Effects == 3 })
	want := map[string]int64{"billing": 3, "mails": 0}
	if got := points(t, reader, "headrace.dead_letters.depth", "messaging.consumer.group.name"); !maps.Equal(got, want) {
		t.Errorf("depth %v, want %v", got, want)
	}
	if got := points(t, reader, "headrace.dead_letters.oldest", "messaging.consumer.group.name"); !maps.Equal(got, map[string]int64{"billing": 0, "mails": 0}) {
		t.Errorf("oldest %v, want those of billing and mails", got)
	}
	states := points(t, reader, "headrace.dead_letters.stored", "headrace.dead_letter.state")
	for _, s := range deadletter.States {
		if _, there := states[string(s)]; !there {
			t.Errorf("states %v lack %q", states, s)
		}
	}
	if _, err := letters.Discard(t.Context(), deadletter.Filter{Consumer: "billing"}, deadletter.By{Actor: "ada", Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	b.eventually("what is done with is deleted", func() bool {
		counts, err := letters.Count(t.Context(), deadletter.Filter{})
		return err == nil && len(counts) == 0
	})
	b.mustStop()
}

func TestDeadLettersWiringIsChecked(t *testing.T) {
	letters := letterStore(t, openStore(t).DeadLetters())
	for _, tc := range []struct {
		name string
		wire func(*runtime.Runtime)
		want string
	}{
		{"no store", func(rt *runtime.Runtime) { rt.DeadLetters(nil, runtime.DeadLetterConfig{}) }, "store is nil"},
		{"retention", func(rt *runtime.Runtime) { rt.DeadLetters(letters, runtime.DeadLetterConfig{Retention: -time.Hour}) }, "Retention is -1h0m0s"},
		{"twice", func(rt *runtime.Runtime) {
			rt.DeadLetters(letters, runtime.DeadLetterConfig{})
			rt.DeadLetters(letters, runtime.DeadLetterConfig{})
		}, "called 2 times"},
	} {
		b := newBench(t, nil)
		runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", handleNothing)
		tc.wire(b.rt)
		wantParts(t, b.rt.Run(t.Context()), tc.want)
	}
}
