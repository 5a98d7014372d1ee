package runtime_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlite"
)

func TestS1RunningHandlerFinishesAndIsAckedDuringTheDrain(t *testing.T) {
	// The router cancelled handlers at once and adapters stopped listening for acks: a handler that
	// succeeded then ran again after the restart.
	b := newBench(t, nil)
	started, finish := make(chan struct{}, 1), make(chan struct{})
	var ctxErr error
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(ctx context.Context, _ order) error {
		started <- struct{}{}
		<-finish
		ctxErr = ctx.Err()
		return nil
	})
	b.publish("orders", placed(t, "1"), placed(t, "2"))
	b.start()
	receive(t, "the handler to start", started)
	b.cancel()
	b.eventually("draining", func() bool { return health(t, b, "/readyz").State == "draining" })
	close(finish)
	if err := b.wait(); err != nil {
		t.Fatalf("Run returned %v, want nil", err)
	}
	if ctxErr != nil {
		t.Errorf("the handler's context had ended during the drain: %v", ctxErr)
	}
	if s := c.Stats(); s.Effects != 1 {
		t.Errorf("stats are %+v, want 1 effect", s)
	}
	if left := b.unacked("orders", "billing"); left != 1 {
		t.Errorf("%d messages un-acked, want 1: the second was given back", left)
	}
}

func TestS2PublisherIsOpenUntilTheLastHandlerHasReturned(t *testing.T) {
	b := newBench(t, nil)
	started, finish, published := make(chan struct{}, 1), make(chan struct{}), make(chan error, 1)
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(context.Context, order) error {
		started <- struct{}{}
		<-finish
		err := b.rt.Publisher().Publish("invoices", newEvent(t, "invoice.issued", order{ID: "i"}))
		published <- err
		return err
	})
	b.publish("orders", placed(t, "1"))
	b.start()
	receive(t, "the handler to start", started)
	b.cancel()
	b.eventually("draining", func() bool { return health(t, b, "/readyz").State == "draining" })
	close(finish)
	if err := b.wait(); err != nil {
		t.Fatalf("Run returned %v, want nil", err)
	}
	if err := receive(t, "the publish", published); err != nil {
		t.Errorf("publish during the drain: %v", err)
	}
}

// mortal ends its subscriptions when killed.
type mortal struct {
	brokers.Broker
	killed chan struct{}
}

func (m mortal) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	sub, err := m.Broker.Subscriber(s)
	return mortalSubscriber{sub, m.killed}, err
}

type mortalSubscriber struct {
	message.Subscriber
	killed chan struct{}
}

func (m mortalSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-m.killed:
		case <-ctx.Done():
		}
		cancel()
	}()
	return m.Subscriber.Subscribe(ctx, topic)
}

func TestS3SubscriptionThatEndsByItselfEndsRunWithAnError(t *testing.T) {
	// A subscriber died, its channel was closed, and the service went on as if all were well.
	killed := make(chan struct{})
	b := newBench(t, func(c *runtime.Config) { c.Broker, c.Redrive = mortal{c.Broker, killed}, runtime.RedriveOff })
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", handleNothing)
	b.start()
	b.eventually("ready", func() bool { return health(t, b, "/readyz").status == http.StatusOK })
	close(killed)
	wantParts(t, b.wait(), "billing", "orders", "ended by itself")
}

func TestS4DrainLimitIsAnErrorThatNamesTheConsumerAndTheKey(t *testing.T) {
	// The drain timed out and Run returned nil.
	b := newBench(t, func(c *runtime.Config) { c.DrainTimeout = 10 * time.Millisecond })
	started := make(chan struct{}, 1)
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(ctx context.Context, _ order) error {
		started <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	b.publish("orders", placed(t, "1"))
	b.start()
	receive(t, "the handler to start", started)
	wantParts(t, b.stop(), "billing", "drain", "1 deliveries running")
	// I5 and D5: shutdown is no failure.
	if s := c.Stats(); s.DeadLettered != 0 || s.Retries != 0 || s.Released != 1 {
		t.Errorf("stats are %+v, want 1 released, nothing retried or dead-lettered", s)
	}
	if left := b.unacked("orders", "billing"); left != 1 {
		t.Errorf("%d messages un-acked, want 1", left)
	}
}

func TestD5ShutdownDuringABackoffDeadLettersNothing(t *testing.T) {
	b := newBench(t, func(c *runtime.Config) {
		c.Retry.MaxAttempts, c.Retry.InitialDelay, c.Retry.MaxDelay = 2, time.Hour, time.Hour
		c.Retry.MaxElapsed = 2 * time.Hour
		c.DrainTimeout = time.Hour
	})
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(context.Context, order) error { return errBroken })
	b.publish("orders", placed(t, "1"))
	b.start()
	b.eventually("in backoff", func() bool { return c.Stats().Retries == 1 })
	b.mustStop() // at once: the next process tries it again
	if s := c.Stats(); s.DeadLettered != 0 || s.Released != 1 {
		t.Errorf("stats are %+v, want 1 released", s)
	}
	if left := b.unacked("orders", "billing"); left != 1 {
		t.Errorf("%d messages un-acked, want 1", left)
	}
}

func TestDeadLetterThatCannotBeWrittenDoesNotHoldUpShutdown(t *testing.T) {
	var down atomic.Bool
	down.Store(true)
	b := newBench(t, func(c *runtime.Config) {
		c.Broker = failing{Broker: c.Broker, dlt: &down}
		c.DrainTimeout = time.Hour
	})
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(context.Context, order) error { return classify.Permanent(errBroken) })
	b.publish("orders", placed(t, "1"))
	b.start()
	b.eventually("it is held", func() bool {
		return strings.Contains(strings.Join(health(t, b, "/readyz").Reasons, " "), "dead letter")
	})
	b.mustStop()
	if s := c.Stats(); s.Released != 1 || b.unacked("orders", "billing") != 1 {
		t.Errorf("stats are %+v and %d un-acked, want 1 released and un-acked", s, b.unacked("orders", "billing"))
	}
}

func TestHandlerThatAsksToStopEndsRunAndKeepsItsMessage(t *testing.T) {
	b := newBench(t, nil)
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(context.Context, order) error {
		return classify.Stop(errBroken)
	})
	b.publish("orders", placed(t, "1"))
	b.start()
	err := b.wait()
	wantParts(t, err, "billing", "stop", "broken")
	if !errors.Is(err, errBroken) {
		t.Errorf("Run's error does not wrap the handler's: %v", err)
	}
	if left := b.unacked("orders", "billing"); left != 1 {
		t.Errorf("%d messages un-acked, want 1", left)
	}
}

// The next message of the key began before the run had ended, took effect and was acked; the one that had asked for the end came again
// behind it.
func TestI3NothingOfTheKeyRunsAfterStop(t *testing.T) {
	for range 20 {
		b := newBench(t, nil)
		var ran atomic.Int64
		var came atomic.Int64
		c := b.rt.ConsumerWith(runtime.ConsumerConfig{Name: "billing", Topic: "orders", Key: func(*message.Message) string { came.Add(1); return "k" }})
		runtime.Handle(c, "order.placed", func(_ context.Context, o order) error {
			if o.ID == "2" {
				ran.Add(1)
				return nil
			}
			b.eventually("the next one waits behind it", func() bool { return came.Load() >= 2 })
			return classify.Stop(errBroken)
		})
		b.publish("orders", placed(t, "1"), placed(t, "2"))
		b.start()
		wantParts(t, b.wait(), "billing", "stop", "broken")
		if left := b.unacked("orders", "billing"); ran.Load() != 0 || left != 2 {
			t.Fatalf("the next message ran %d times, %d un-acked; want none, and both", ran.Load(), left)
		}
	}
}

// failing is a broker whose parts cannot be opened, or whose dead letters cannot be written.
type failing struct {
	brokers.Broker
	subscribe bool
	dlt       *atomic.Bool
}

func (f failing) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	if f.subscribe {
		return nil, errBroken
	}
	return f.Broker.Subscriber(s)
}

func (f failing) Publisher() (message.Publisher, error) {
	pub, err := f.Broker.Publisher()
	return failingPublisher{pub, f.dlt}, err
}

type failingPublisher struct {
	message.Publisher
	dlt *atomic.Bool
}

func (f failingPublisher) Publish(topic string, msgs ...*message.Message) error {
	if f.dlt != nil && f.dlt.Load() && strings.HasSuffix(topic, ".DLT") {
		return errBroken
	}
	return f.Publisher.Publish(topic, msgs...)
}

func TestSubscribeFailureIsReturnedAndNothingIsLeftRunning(t *testing.T) {
	b := newBench(t, func(c *runtime.Config) { c.Broker = failing{Broker: c.Broker, subscribe: true} })
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", handleNothing)
	wantParts(t, b.rt.Run(t.Context()), "billing", "orders", "broken")
}

func TestD2DeadLetterThatCannotBeWrittenHoldsItsKeyAndShowsInHealth(t *testing.T) {
	// The offset was marked done before the dead letter was written, and its failure only logged.
	var down atomic.Bool
	down.Store(true)
	b := newBench(t, func(c *runtime.Config) { c.Broker = failing{Broker: c.Broker, dlt: &down} })
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(_ context.Context, o order) error {
		if o.ID == "1" {
			return classify.Permanent(errBroken)
		}
		return nil
	})
	b.publish("orders", placed(t, "1"), placed(t, "2"))
	b.start()
	b.eventually("health tells", func() bool {
		a := health(t, b, "/readyz")
		return a.status == http.StatusServiceUnavailable && strings.Contains(strings.Join(a.Reasons, " "), "dead letter")
	})
	if s := c.Stats(); s.Deliveries != 0 {
		t.Errorf("stats are %+v while the dead letter cannot be written, want nothing settled", s)
	}
	down.Store(false)
	b.dead("orders", 1)
	b.eventually("the second is handled", func() bool { return c.Stats().Effects == 1 })
	b.mustStop()
}

func TestHoldEndsByReleaseBeforeTheBrokersHardLimit(t *testing.T) {
	// A delivery held for longer than 30 minutes closed RabbitMQ's channel, with everything on it.
	var down atomic.Bool
	down.Store(true)
	b := newBench(t, func(c *runtime.Config) {
		caps := c.Broker.Capabilities()
		caps.ExtendsPatience, caps.PatienceLimit = true, 50*time.Millisecond
		c.Broker = failing{Broker: capable{c.Broker, caps}, dlt: &down}
		c.Retry.MaxRetryAfter = time.Millisecond
		c.Timeout = 10 * time.Millisecond
	})
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(context.Context, order) error { return classify.Permanent(errBroken) })
	b.publish("orders", placed(t, "1"))
	b.start()
	b.eventually("released", func() bool { return c.Stats().Released > 0 })
	down.Store(false)
	b.dead("orders", 1)
	b.eventually("acked", func() bool { return b.unacked("orders", "billing") == 0 })
	b.mustStop()
}

func TestPanicOfTheConsumersOwnFunctionsIsTheMessagesFailure(t *testing.T) {
	for _, field := range []string{"ID", "Type", "Key"} {
		t.Run(field, func(t *testing.T) {
			cfg := runtime.ConsumerConfig{Name: "billing", Topic: "orders"}
			boom := func(*message.Message) string { panic("boom") }
			switch field {
			case "ID":
				cfg.ID = boom
			case "Type":
				cfg.Type = boom
			case "Key":
				cfg.Key = boom
			}
			b := newBench(t, nil)
			c := b.rt.ConsumerWith(cfg)
			runtime.HandleMessage(c, runtime.AnyType, func(*message.Message) error { return nil })
			b.publish("orders", message.NewMessage("1", []byte("x")))
			b.start()
			if field == "Key" { // the intake falls back to the default key, and says so
				b.eventually("handled", func() bool { return c.Stats().Effects == 1 })
			} else if rec := parseDead(t, b.dead("orders", 1)[0]); !strings.Contains(rec.Error, "boom") {
				t.Errorf("dead letter says %q, want the panic's value", rec.Error)
			}
			b.mustStop()
			if left := b.unacked("orders", "billing"); left != 0 {
				t.Errorf("%d messages un-acked, want 0", left)
			}
		})
	}
}

func TestMissingTableIsNamedBeforeAnythingIsRead(t *testing.T) {
	store, err := sqlite.Open(t.TempDir() + "/empty.db")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	b := newBench(t, nil)
	c := b.rt.Consumer("billing", "orders")
	runtime.HandleTx(c, "order.placed", store, insertEffect)
	b.publish("orders", placed(t, "1"))
	wantParts(t, b.rt.Run(t.Context()), "headrace_", "Migrate")
	if s := c.Stats(); s.Deliveries != 0 {
		t.Errorf("stats are %+v, want nothing delivered", s)
	}
}

func TestL5ConcurrencyAboveThePoolIsRefusedAndTheDefaultFits(t *testing.T) {
	// A window of 1,024 on a pool of 4: handlers timed out waiting for a connection.
	store := openStore(t)
	b := newBench(t, func(c *runtime.Config) { c.Concurrency = 8 })
	runtime.HandleTx(b.rt.Consumer("billing", "orders"), "order.placed", store, insertEffect)
	wantParts(t, b.rt.Run(t.Context()), "billing", "Concurrency is 8", "1 transactions")

	b = newBench(t, nil)
	var running, most atomic.Int64
	c := b.rt.Consumer("billing", "orders")
	runtime.HandleTx(c, "order.placed", store, func(ctx context.Context, tx *sql.Tx, o order) error {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		return insertEffect(ctx, tx, o)
	})
	for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
		b.publish("orders", placed(t, id, event.WithKey(id)))
	}
	b.start()
	b.eventually("all handled", func() bool { return c.Stats().Effects == 6 })
	b.mustStop()
	if most.Load() != 1 {
		t.Errorf("%d handlers at once on a store of one connection, want 1", most.Load())
	}
}

// A plain handler beside a grouped one on one store: the limit was that of whichever the map's order gave first.
func TestL5ConcurrencyIsThatOfTheStoresTightestHandler(t *testing.T) {
	store := openStore(t)
	for range 20 {
		b := newBench(t, func(c *runtime.Config) { c.Concurrency = 8 })
		c := b.rt.Consumer("billing", "orders")
		runtime.HandleTx(c, "order.placed", store, insertEffect)
		runtime.HandleTx(c, "order.changed", inbox.Grouped(store, inbox.GroupConfig{}), insertEffect)
		wantParts(t, b.rt.Run(t.Context()), "billing", "Concurrency is 8", "1 transactions")
	}
}

func TestShortInboxRetentionIsAWarningThatNamesBothNumbers(t *testing.T) {
	store := openStore(t)
	b := newBench(t, func(c *runtime.Config) {
		c.Broker = capable{c.Broker, brokers.Capabilities{System: "x", Retention: 48 * time.Hour}}
		c.InboxRetention = 24 * time.Hour
		c.DeadLetterRetention = time.Hour
	})
	runtime.HandleTx(b.rt.Consumer("billing", "orders"), "order.placed", store, insertEffect)
	b.start()
	b.eventually("warned", func() bool { return strings.Contains(b.log.String(), "level=WARN") })
	b.mustStop()
	for _, part := range []string{"billing", "24h0m0s", "49h"} {
		if !strings.Contains(b.log.String(), part) {
			t.Errorf("log is %s, want it to contain %q", b.log, part)
		}
	}
}

// answer is a probe's.
type answer struct {
	status    int
	State     string   `json:"state"`
	Reasons   []string `json:"reasons"`
	Consumers []struct {
		Consumer string  `json:"consumer"`
		InFlight int     `json:"in_flight"`
		Oldest   float64 `json:"oldest_in_flight_seconds"`
	} `json:"consumers"`
}

func health(t *testing.T, b *bench, path string) answer {
	t.Helper()
	w := httptest.NewRecorder()
	b.rt.Health().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	a := answer{status: w.Code}
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		t.Fatalf("%s answered %d %q: %v", path, w.Code, w.Body, err)
	}
	return a
}

func TestHealthTellsAliveReadyAndProgress(t *testing.T) {
	b := newBench(t, func(c *runtime.Config) { c.StallAfter = time.Nanosecond })
	started, finish := make(chan struct{}, 1), make(chan struct{})
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(context.Context, order) error {
		started <- struct{}{}
		<-finish
		return nil
	})
	if a := health(t, b, "/livez"); a.status != http.StatusOK {
		t.Errorf("before Run: /livez is %+v, want 200", a)
	}
	if a := health(t, b, "/readyz"); a.status != http.StatusServiceUnavailable || a.State != "starting" {
		t.Errorf("before Run: /readyz is %+v, want 503, starting", a)
	}
	b.start()
	receiveClosed(t, b.rt.Running())
	if a := health(t, b, "/readyz"); a.status != http.StatusOK {
		t.Errorf("running: /readyz is %+v, want 200", a)
	}
	if a := health(t, b, "/progressz"); a.status != http.StatusOK {
		t.Errorf("idle: /progressz is %+v, want 200: nothing to do is not a stall", a)
	}
	b.publish("orders", placed(t, "1"))
	receive(t, "the handler to start", started)
	b.eventually("stalled", func() bool {
		a := health(t, b, "/progressz")
		return a.status == http.StatusServiceUnavailable && strings.Contains(a.Reasons[0], "billing")
	})
	if a := health(t, b, "/livez"); a.status != http.StatusOK {
		t.Errorf("stalled: /livez is %+v, want 200", a)
	}
	close(finish)
	b.mustStop()
	if a := health(t, b, "/livez"); a.status != http.StatusServiceUnavailable || a.State != "stopped" {
		t.Errorf("after Run: /livez is %+v, want 503, stopped", a)
	}
}

func TestOutboxEventsReachTheNextConsumerWithTheirCorrelation(t *testing.T) {
	b, store := newBench(t, nil), openStore(t)
	runtime.HandleTx(b.rt.Consumer("billing", "orders"), "order.placed", store, func(ctx context.Context, tx *sql.Tx, o order) error {
		if err := insertEffect(ctx, tx, o); err != nil {
			return err
		}
		issued, err := event.New(ctx, "invoice.issued", order{ID: "i" + o.ID})
		if err != nil {
			return err
		}
		return outbox.Add(ctx, store, tx, "invoices", issued)
	})
	got := make(chan event.Envelope, 1)
	runtime.Handle(b.rt.Consumer("mailing", "invoices"), "invoice.issued", func(ctx context.Context, _ order) error {
		env, _ := event.FromContext(ctx)
		got <- env
		return nil
	})
	b.rt.Relay(store.Outbox(), outbox.RelayConfig{})
	first := placed(t, "1")
	b.publish("orders", first)
	b.start()
	env := receive(t, "the invoice", got)
	b.mustStop()
	if env.CorrelationID != first.Metadata[event.MetaCorrelationID] || env.CausationID != "1" {
		t.Errorf("invoice has correlation %q and causation %q, want %q and %q",
			env.CorrelationID, env.CausationID, first.Metadata[event.MetaCorrelationID], "1")
	}
}

func TestContextThatEndsBeforeTheStartIsNoFailure(t *testing.T) {
	b, store := newBench(t, nil), openStore(t)
	runtime.HandleTx(b.rt.Consumer("billing", "orders"), "order.placed", store, insertEffect)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.rt.Run(ctx); err != nil {
		t.Errorf("Run returned %v, want nil", err)
	}
}

func TestLivenessFailsAfterAFailedStart(t *testing.T) {
	b := newBench(t, nil)
	wantParts(t, b.rt.Run(t.Context()), "nothing to run")
	if a := health(t, b, "/livez"); a.status != http.StatusServiceUnavailable || a.State != "stopped" {
		t.Errorf("/livez is %+v, want 503, stopped", a)
	}
}

func TestLateRegistrationEndsTheRun(t *testing.T) {
	for name, late := range map[string]func(*runtime.Runtime, *runtime.Consumer){
		"consumer": func(rt *runtime.Runtime, _ *runtime.Consumer) { rt.Consumer("late", "t") },
		"handler": func(_ *runtime.Runtime, c *runtime.Consumer) {
			runtime.Handle(c, "late", handleNothing)
		},
		"relay": func(rt *runtime.Runtime, _ *runtime.Consumer) { rt.Relay(nil, outbox.RelayConfig{}) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			c := b.rt.Consumer("billing", "orders")
			runtime.Handle(c, "order.placed", handleNothing)
			b.start()
			receiveClosed(t, b.rt.Running())
			late(b.rt, c)
			wantParts(t, b.wait(), "after Run had begun", name)
		})
	}
}

func receiveClosed(t *testing.T, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(limit):
		t.Fatalf("not running within %v", limit)
	}
}

func TestRelayWithoutItsTablesIsRefused(t *testing.T) {
	store, err := sqlite.Open(t.TempDir() + "/empty.db")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	b := newBench(t, nil)
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", handleNothing)
	b.rt.Relay(store.Outbox(), outbox.RelayConfig{})
	wantParts(t, b.rt.Run(t.Context()), "outbox", "headrace_outbox", "Migrate")

	b = newBench(t, nil)
	b.rt.Relay(nil, outbox.RelayConfig{})
	wantParts(t, b.rt.Run(t.Context()), "outbox relay 0", "nil")
}
