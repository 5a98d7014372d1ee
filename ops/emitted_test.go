package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlite"
)

// knowing is a broker that tells what a consumer's metrics can tell of it.
type knowing struct{ brokers.Broker }

func (b knowing) Capabilities() brokers.Capabilities {
	c := b.Broker.Capabilities()
	c.Retention = time.Hour
	return c
}

func (knowing) Lag(string, string) (int64, bool) { return 1, true }

// Telemetry had the instruments of the dead letters, and the golden file showed them, but no service ever reported them: the alerts on
// them could not ring. So a whole service runs here in which everything happens once.
func TestARunningServiceEmitsWhatRulesAndDashboardName(t *testing.T) {
	metrics, _ := exported(t)
	named := map[string]bool{}
	for _, file := range []string{rulesFile, dashboardFile} {
		for _, name := range ourNames.FindAllString(read(t, file), -1) {
			if metrics[name] { // else a label
				named[name] = true
			}
		}
	}
	emitted := serve(t, named)
	for name := range named {
		if !emitted[name] {
			t.Errorf("rules or dashboard name %s, which no running service emits", name)
		}
	}
}

// serve runs a service until it has emitted all of want, or for a minute, and returns what it has emitted.
func serve(t *testing.T, want map[string]bool) map[string]bool {
	t.Helper()
	broker, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := sqlite.Open(filepath.Join(t.TempDir(), "test.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(broker.Close(), store.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	letters, err := deadletter.NewStore(store.DeadLetters(), deadletter.Protection{})
	if err != nil {
		t.Fatal(err)
	}
	reader := sdkmetric.NewManualReader()
	rt, err := runtime.New(runtime.Config{
		Service: "billing", Broker: knowing{broker}, Logger: slog.New(slog.DiscardHandler),
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		Policy: runtime.Policy{
			Retry:   middleware.RetryConfig{InitialDelay: time.Millisecond, MaxDelay: 5 * time.Millisecond},
			Breaker: middleware.BreakerConfig{Keys: 2, After: time.Millisecond, ProbeDelay: time.Millisecond, MaxProbeDelay: 5 * time.Millisecond},
			MaxHold: time.Millisecond,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	billing := rt.ConsumerWith(runtime.ConsumerConfig{Name: "billing.orders", Topic: "orders", Park: &parking.Policy{Poll: time.Millisecond}})
	runtime.HandleTx(billing, "order.placed", store, func(ctx context.Context, _ *sql.Tx, _ struct{}) error {
		e, _ := event.FromContext(ctx)
		switch {
		case e.ID == "bad":
			return classify.Permanent(errors.New("bad"))
		case strings.HasPrefix(e.ID, "outage") && billing.Breaker().Outages == 0:
			return errors.New("away")
		}
		return nil
	})
	runtime.Handle(rt.Consumer("mails", "orders"), "order.placed", func(ctx context.Context, _ struct{}) error {
		if e, _ := event.FromContext(ctx); e.ID == "outage 1" && middleware.Attempt(ctx) == 1 {
			return classify.RetryAfter(errors.New("later"), 2*time.Millisecond)
		}
		return nil
	})
	runtime.HandleDeadLettersTx(rt.Consumer("billing.deadletters", "orders.DLT"), store, deadletter.Index(store, deadletter.Protection{}))
	rt.DeadLetters(letters, runtime.DeadLetterConfig{})
	rt.Relay(store.Outbox(), outbox.RelayConfig{})

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	pub, err := broker.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	send := func(id string) {
		msg, err := event.New(event.ContextWithSource(ctx, "/shop"), "order.placed", struct{}{}, event.WithID(id), event.WithKey(id))
		if err != nil {
			t.Fatal(err)
		}
		msg.SetContext(context.Background())
		if err := pub.Publish("orders", msg); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"bad", "good", "good", "outage 1", "outage 2", "outage 3"} {
		send(id)
	}
	deadline := time.After(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	emitted := map[string]bool{}
	for n := 0; ; n++ {
		collect(t, reader, emitted)
		missing := 0
		for name := range want {
			if !emitted[name] {
				missing++
			}
		}
		if missing == 0 {
			return emitted
		}
		select {
		case <-tick.C:
			send(fmt.Sprint(n)) // something is in flight
		case <-deadline:
			return emitted
		}
	}
}

// collect adds the names that the Prometheus exporter gives to what the reader has.
func collect(t *testing.T, reader *sdkmetric.ManualReader, names map[string]bool) {
	t.Helper()
	var all metricdata.ResourceMetrics
	// What is not known yet is an error, and the rest is there.
	if err := reader.Collect(t.Context(), &all); err != nil && !strings.Contains(err.Error(), "was not counted yet") {
		t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			name := strings.ReplaceAll(m.Name, ".", "_")
			if m.Unit == "s" {
				name += "_seconds"
			}
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				names[name+"_bucket"], names[name+"_sum"], names[name+"_count"] = true, true, true
			case metricdata.Sum[int64]:
				if data.IsMonotonic {
					name += "_total"
				}
				names[name] = true
			default:
				names[name] = true
			}
		}
	}
}
