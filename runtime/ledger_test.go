package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/testonly"
)

// ledgerRun is a run of an earlier process of the bench's service.
func ledgerRun(id string) ledger.Run {
	return ledger.Run{Service: "test", ID: id, Instance: "host"}
}

var ledgerTerms = ledger.Terms{TTL: time.Hour, Retention: time.Hour, MaxSuspects: 100}

func withLedger(store ledger.Store) func(*runtime.Config) {
	return func(c *runtime.Config) { c.Ledger = ledger.Config{Store: store, Instance: "host"} }
}

// Earlier processes died: one with two messages in flight, then two while one of them was alone.
func TestI12MessageThatKillsTheProcessIsDeadLettered(t *testing.T) {
	store := testonly.NewLedger()
	killer := ledger.Key{Consumer: "billing", ID: "ce:/shop killer"}
	neighbour := ledger.Key{Consumer: "billing", ID: "ce:/shop neighbour"}
	for i := range 3 {
		run := ledgerRun(fmt.Sprint(i))
		if _, err := store.Begin(t.Context(), run, ledgerTerms); err != nil {
			t.Fatal(err)
		}
		var err error
		if i == 0 {
			_, err = store.Record(t.Context(), run, nil, []ledger.Key{killer, neighbour})
		} else {
			_, err = store.Alone(t.Context(), run, killer, false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	b := newBench(t, withLedger(store))
	var handled atomic.Int32
	var repaired atomic.Bool
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(_ context.Context, o order) error {
		if o.ID == "killer" && !repaired.Load() {
			t.Error("the killer was started again")
		}
		handled.Add(1)
		return nil
	})
	b.start()
	<-b.rt.Running()
	for _, id := range []string{"first", "killer", "neighbour", "last"} {
		b.publish("orders", placed(t, id, event.WithKey(id)))
	}
	dead := b.dead("orders", 1)[0]
	record, err := poison.Parse(dead)
	if err != nil {
		t.Fatal(err)
	}
	if record.MessageID != killer.ID || record.ErrorType != "ledger.CrashLoopError" || !strings.Contains(record.Error, "2 of them while it ran alone") {
		t.Errorf("got the dead letter of %q, %s: %s; want the killer's, with its starts", record.MessageID, record.ErrorType, record.Error)
	}
	b.eventually("the others were handled", func() bool { return handled.Load() == 3 })
	if got := b.rt.LedgerStats(); got.State != "recording" || got.Alone != 1 || got.Convicted != 1 {
		t.Errorf("got %+v, want it to record, one alone, one convicted", got)
	}
	// It was mended and redriven, and refused as the one that had killed.
	repaired.Store(true)
	b.publish(poison.RedriveTopic("billing"), redriven(t, dead, 1))
	b.eventually("the mended one was handled", func() bool { return handled.Load() == 4 })
	b.mustStop()
	if keys, err := store.Suspects(t.Context(), "test", ledger.DefaultRetention, 10); err != nil || len(keys) != 0 {
		t.Errorf("after a clean stop: got the suspects %v, %v; want none", keys, err)
	}
}

func TestI12CleanRunLeavesNothing(t *testing.T) {
	store := testonly.NewLedger()
	for range 2 {
		b := newBench(t, withLedger(store))
		done := make(chan struct{})
		runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(context.Context, order) error { close(done); return nil })
		b.start()
		<-b.rt.Running()
		b.publish("orders", placed(t, "a"))
		receiveClosed(t, done)
		b.mustStop()
	}
	got, err := store.Begin(t.Context(), ledgerRun("next"), ledgerTerms)
	if err != nil || got.Alarms != 0 || got.Fresh {
		t.Errorf("after two clean runs: got %+v, %v; want no alarm", got, err)
	}
}

// awayLedger cannot be reached.
type awayLedger struct{ ledger.Store }

func (awayLedger) Check(context.Context) error { return errBroken }
func (awayLedger) Begin(context.Context, ledger.Run, ledger.Terms) (ledger.Standing, error) {
	return ledger.Standing{}, errBroken
}
func (awayLedger) End(context.Context, ledger.Run) error { return errBroken }

func TestLedgerThatIsAwayStopsNothing(t *testing.T) {
	b := newBench(t, withLedger(awayLedger{}))
	done := make(chan struct{})
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(context.Context, order) error { close(done); return nil })
	b.start()
	<-b.rt.Running()
	b.publish("orders", placed(t, "a"))
	receiveClosed(t, done)
	answer := httptest.NewRecorder()
	b.rt.Health().ServeHTTP(answer, httptest.NewRequest("GET", "/readyz", nil))
	if answer.Code != 200 || !strings.Contains(answer.Body.String(), `"crash_ledger":"off"`) {
		t.Errorf("readyz: got %d %s, want 200, and the ledger off", answer.Code, answer.Body)
	}
	b.mustStop()
	if !strings.Contains(b.log.String(), "ledger is off") || !strings.Contains(b.log.String(), "clean stop could not be recorded") {
		t.Errorf("the log does not tell:\n%s", b.log)
	}
}

// unusableLedger was not migrated.
type unusableLedger struct{ ledger.Store }

func (unusableLedger) Check(context.Context) error { return ledger.ErrNotUsable }

func TestLedgerThatCannotWorkEndsRun(t *testing.T) {
	b := newBench(t, withLedger(unusableLedger{}))
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(context.Context, order) error { return nil })
	b.start()
	if err := b.wait(); !errors.Is(err, ledger.ErrNotUsable) {
		t.Errorf("Run: got %v, want that the ledger is not usable", err)
	}
}

func TestLedgerConfigIsChecked(t *testing.T) {
	b := newBench(t, nil)
	_, err := runtime.New(runtime.Config{Service: "s", Broker: b.broker, Ledger: ledger.Config{Instance: "x"}})
	wantParts(t, err, "runtime.Config.Ledger", "Store is nil")
	if got := b.rt.LedgerStats(); got != (ledger.Stats{}) {
		t.Errorf("without a ledger: got %+v, want nothing", got)
	}
}
