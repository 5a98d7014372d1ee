package runtime_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
)

func TestHandleGetsEventsDecodedAndInOrderPerKey(t *testing.T) {
	b := newBench(t, nil)
	const perKey, keys = 50, 8
	var mu sync.Mutex
	got := map[string][]string{}
	var n atomic.Int64
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(ctx context.Context, o order) error {
		env, ok := event.FromContext(ctx)
		if !ok {
			return errors.New("no envelope in the context")
		}
		mu.Lock()
		defer mu.Unlock()
		got[env.PartitionKey] = append(got[env.PartitionKey], o.ID)
		n.Add(1)
		return nil
	})
	want := map[string][]string{}
	for i := range perKey {
		for k := range keys {
			key, id := fmt.Sprintf("key-%d", k), fmt.Sprintf("%d-%d", k, i)
			want[key] = append(want[key], id)
			b.publish("orders", placed(t, id, event.WithKey(key)))
		}
	}
	b.start()
	b.eventually("all handled", func() bool { return n.Load() == perKey*keys })
	b.mustStop()
	for key, ids := range want {
		if !slices.Equal(got[key], ids) {
			t.Errorf("%s: handled %v, want %v", key, got[key], ids)
		}
	}
	if s := c.Stats(); s.Deliveries != perKey*keys || s.Effects != perKey*keys {
		t.Errorf("stats are %+v, want %d deliveries and effects", s, perKey*keys)
	}
	if left := b.unacked("orders", "billing"); left != 0 {
		t.Errorf("%d messages un-acked, want 0", left)
	}
}

func TestUnknownTypeIsAckedAndCountedByDefault(t *testing.T) {
	b := newBench(t, nil)
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", handleNothing)
	b.publish("orders", newEvent(t, "order.archived", order{ID: "1"}))
	b.start()
	b.eventually("ignored", func() bool { return c.Stats().Ignored == 1 })
	b.mustStop()
	if left := b.unacked("orders", "billing"); left != 0 {
		t.Errorf("%d messages un-acked, want 0", left)
	}
}

func TestUnknownTypeIsDeadLetteredByPolicy(t *testing.T) {
	b := newBench(t, func(c *runtime.Config) { c.Unknown = runtime.DeadLetter })
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", handleNothing)
	b.publish("orders", newEvent(t, "order.archived", order{ID: "1"}))
	b.start()
	rec := parseDead(t, b.dead("orders", 1)[0])
	b.mustStop()
	if !strings.Contains(rec.Error, `"order.archived"`) || rec.Consumer != "billing" {
		t.Errorf("dead letter says %q of consumer %q, want it to name the type and billing", rec.Error, rec.Consumer)
	}
	if s := c.Stats(); s.DeadLettered != 1 {
		t.Errorf("stats are %+v, want 1 dead letter", s)
	}
}

func parseDead(t *testing.T, m *message.Message) poison.Record {
	t.Helper()
	rec, err := poison.Parse(m)
	if err != nil {
		t.Fatalf("parse the dead letter %v: %v", m.Metadata, err)
	}
	return rec
}

// Each of these can never be handled. None may be lost, block its key, or be retried.
func TestBadInputIsDeadLetteredWithItsBytesAndTheFieldNamed(t *testing.T) {
	tests := []struct {
		name string
		msg  func() *message.Message
		want string
	}{
		{"broken JSON", func() *message.Message {
			m := placed(t, "1")
			m.Payload = []byte(`{"id":`)
			return m
		}, "data"},
		{"wrong type of a field", func() *message.Message {
			m := placed(t, "2")
			m.Payload = []byte(`{"id":{"not":"a string"}}`)
			return m
		}, "data"},
		{"no data", func() *message.Message {
			m := placed(t, "3")
			m.Payload = nil
			return m
		}, "data"},
		{"no specversion", func() *message.Message {
			m := placed(t, "4")
			delete(m.Metadata, event.MetaSpecVersion)
			return m
		}, event.MetaSpecVersion},
		{"empty id", func() *message.Message {
			m := placed(t, "5")
			m.Metadata[event.MetaID] = ""
			return m
		}, event.MetaID},
		{"bad time", func() *message.Message {
			m := placed(t, "6")
			m.Metadata[event.MetaTime] = "yesterday"
			return m
		}, "yesterday"},
		{"huge header", func() *message.Message {
			m := placed(t, "7")
			m.Metadata[event.MetaSubject] = strings.Repeat("x", event.MaxAttributeBytes+1)
			return m
		}, event.MetaSubject},
		{"invalid UTF-8", func() *message.Message {
			m := placed(t, "8")
			m.Payload = []byte{0xff, 0xfe, 0x00}
			return m
		}, "data"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, nil)
			var handled atomic.Int64
			c := b.rt.Consumer("billing", "orders")
			runtime.Handle(c, "order.placed", func(context.Context, order) error { handled.Add(1); return nil })
			bad := tt.msg()
			payload, metadata := slices.Clone(bad.Payload), fmt.Sprint(bad.Metadata)
			b.publish("orders", bad, placed(t, "next"))
			b.start()
			dead := b.dead("orders", 1)[0]
			b.eventually("the next of the key is handled", func() bool { return handled.Load() == 1 })
			b.mustStop()
			rec := parseDead(t, dead)
			if !slices.Equal(rec.Payload, payload) {
				t.Errorf("dead letter has payload %q, want the original %q", rec.Payload, payload)
			}
			if got := fmt.Sprint(message.Metadata(rec.Metadata)); got != metadata {
				t.Errorf("dead letter has metadata %.300s, want the original %.300s", got, metadata)
			}
			if !strings.Contains(rec.Error, tt.want) {
				t.Errorf("dead letter says %q, want it to name %q", rec.Error, tt.want)
			}
			if rec.Attempts != 1 {
				t.Errorf("tried %d times, want once", rec.Attempts)
			}
			if s := c.Stats(); s.DeadLettered != 1 || s.Effects != 1 || s.Retries != 0 {
				t.Errorf("stats are %+v, want 1 dead letter, 1 effect, no retry", s)
			}
		})
	}
}

// A middleware that logs an error and returns nil, as Watermill's own IgnoreErrors does, made messages
// disappear: they were acked without an effect.
func TestI2MiddlewareThatSwallowsAnErrorDoesNotAck(t *testing.T) {
	swallow := func(h message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			_, _ = h(m)
			return nil, nil
		}
	}
	b := newBench(t, func(c *runtime.Config) { c.Middleware = []message.HandlerMiddleware{swallow} })
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(context.Context, order) error { return errBroken })
	b.publish("orders", placed(t, "1"))
	b.start()
	rec := parseDead(t, b.dead("orders", 1)[0])
	b.mustStop()
	if !strings.Contains(rec.Error, "middleware returned nil") {
		t.Errorf("dead letter says %q, want it to blame the middleware", rec.Error)
	}
	if s := c.Stats(); s.Effects != 0 || s.DeadLettered != 1 {
		t.Errorf("stats are %+v, want no effect and 1 dead letter", s)
	}
}

func TestDropIsAckedWithoutDeadLetter(t *testing.T) {
	b := newBench(t, nil)
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(context.Context, order) error {
		return fmt.Errorf("not ours: %w", classify.Drop(errBroken))
	})
	b.publish("orders", placed(t, "1"))
	b.start()
	b.eventually("dropped", func() bool { return c.Stats().Dropped == 1 })
	b.mustStop()
	if left := b.unacked("orders", "billing") + b.unacked("orders.DLT", "dead"); left != 0 {
		t.Errorf("%d messages un-acked or dead-lettered, want 0", left)
	}
}

func TestTransientFailureIsRetriedUntilItSucceeds(t *testing.T) {
	b := newBench(t, nil)
	var runs atomic.Int64
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(context.Context, order) error {
		if runs.Add(1) < 3 {
			return errBroken
		}
		return nil
	})
	b.publish("orders", placed(t, "1"))
	b.start()
	b.eventually("handled", func() bool { return c.Stats().Effects == 1 })
	b.mustStop()
	if s := c.Stats(); s.Retries != 2 || s.Deliveries != 1 || s.DeadLettered != 0 {
		t.Errorf("stats are %+v, want 2 retries within 1 delivery", s)
	}
}

func TestRetryHoldsItsKeyAndNothingElse(t *testing.T) {
	// On SQLite one handler runs at a time: a message that waited to be tried again held up every key.
	b, store := newBench(t, nil), openStore(t)
	c := b.rt.Consumer("billing", "orders")
	release := make(chan struct{})
	runtime.HandleTx(c, "order.placed", store, func(ctx context.Context, tx *sql.Tx, o order) error {
		if o.ID == "a" {
			select {
			case <-release:
			default:
				return classify.RetryAfter(errBroken, 100*time.Millisecond)
			}
		}
		if o.ID == "b" {
			defer close(release)
		}
		return insertEffect(ctx, tx, o)
	})
	b.publish("orders", placed(t, "a", event.WithKey("a")), placed(t, "a2", event.WithKey("a")), placed(t, "b", event.WithKey("b")))
	b.start()
	b.eventually("all handled", func() bool { return c.Stats().Effects == 3 })
	b.mustStop()
	if got, want := effects(t, store), []string{"b", "a", "a2"}; !slices.Equal(got, want) {
		t.Errorf("effects are %q, want %q: b was not held up, a2 was", got, want)
	}
}

func TestExhaustedAndPanickingHandlersAreDeadLetteredAndTheKeyGoesOn(t *testing.T) {
	b := newBench(t, nil)
	c := b.rt.Consumer("billing", "orders")
	var order3 atomic.Bool
	var runs atomic.Int64
	vouched := make(chan struct{})
	runtime.Handle(c, "order.placed", func(_ context.Context, o order) error {
		switch o.ID {
		case "1":
			if runs.Add(1) == 2 {
				b.publish("orders", placed(t, "other", event.WithKey("another key"))) // succeeds: it is no outage
				<-vouched
			}
			return errBroken
		case "2":
			panic("no such luck")
		case "3":
			order3.Store(true)
		}
		return nil
	})
	b.publish("orders", placed(t, "1"), placed(t, "2"), placed(t, "3"))
	b.start()
	b.eventually("another key succeeds", func() bool { return c.Stats().Effects == 1 })
	close(vouched)
	dead := b.dead("orders", 2)
	b.eventually("the third is handled", order3.Load)
	b.mustStop()
	first, second := parseDead(t, dead[0]), parseDead(t, dead[1])
	if first.Attempts != 3 || !strings.Contains(first.Error, "broken") {
		t.Errorf("first dead letter: %d attempts, %q; want 3, broken", first.Attempts, first.Error)
	}
	if second.Attempts != 1 || !strings.Contains(second.Error, "no such luck") || second.Stack == "" {
		t.Errorf("second dead letter: %d attempts, %q, %d bytes of stack; want 1, the panic's value, a stack", second.Attempts, second.Error, len(second.Stack))
	}
}

func TestD4ConsumerOfDeadLettersMakesNone(t *testing.T) {
	// The dead-letter topic's own consumer had the same dead-letter topic: a loop.
	b := newBench(t, nil)
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(context.Context, order) error {
		return classify.Permanent(errBroken)
	})
	var runs atomic.Int64
	grave := b.rt.Consumer("graveyard", "orders.DLT")
	runtime.HandleMessage(grave, runtime.AnyType, func(*message.Message) error {
		if runs.Add(1) < 4 {
			return classify.Permanent(errBroken)
		}
		return nil
	})
	b.publish("orders", placed(t, "1"))
	b.start()
	b.eventually("the dead letter is handled", func() bool { return grave.Stats().Effects == 1 })
	b.mustStop()
	if s := grave.Stats(); s.DeadLettered != 0 {
		t.Errorf("stats are %+v, want no dead letter of a dead letter", s)
	}
	if n := b.unacked("orders.DLT.DLT", "x") + b.unacked("orders.DLT", "graveyard"); n != 0 {
		t.Errorf("%d messages left or dead-lettered again, want 0", n)
	}
}

func TestDeadLettersAreHandledOnceWhateverIsWrongWithThem(t *testing.T) {
	b, store := newBench(t, nil), openStore(t)
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(context.Context, order) error {
		return classify.Permanent(errBroken)
	})
	grave := b.rt.Consumer("graveyard", "orders.DLT")
	runtime.HandleDeadLettersTx(grave, store, func(ctx context.Context, tx *sql.Tx, rec poison.Record) error {
		return insertEffect(ctx, tx, order{ID: rec.Consumer + ":" + rec.UUID})
	})
	plain := b.rt.Consumer("alarm", "orders.DLT")
	runtime.HandleDeadLetters(plain, func(context.Context, poison.Record) error { return nil })

	invalid := placed(t, "2")
	delete(invalid.Metadata, event.MetaSpecVersion)
	b.publish("orders", placed(t, "1"), invalid)
	b.start()
	b.eventually("both handled by both", func() bool { return grave.Stats().Effects == 2 && plain.Stats().Effects == 2 })
	for _, m := range b.dead("orders", 2) { // a second copy, as a crash before the ack makes it
		b.publish("orders.DLT", m)
	}
	b.eventually("copies recognised", func() bool { return grave.Stats().Duplicates == 2 })
	b.mustStop()
	if got, want := effects(t, store), []string{"billing:1", "billing:2"}; !slices.Equal(got, want) {
		t.Errorf("effects are %q, want %q", got, want)
	}
}

func TestGoexitIsTheMessagesFailure(t *testing.T) {
	// t.FailNow in a handler, or any runtime.Goexit, ended the router's goroutine: the message was
	// delivered again and again.
	b := newBench(t, nil)
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(_ context.Context, o order) error {
		if o.ID == "1" {
			goruntime.Goexit()
		}
		return nil
	})
	b.publish("orders", placed(t, "1"), placed(t, "2"))
	b.start()
	rec := parseDead(t, b.dead("orders", 1)[0])
	b.eventually("the next of the key is handled", func() bool { return c.Stats().Effects == 1 })
	b.mustStop()
	if !strings.Contains(rec.Error, "Goexit") {
		t.Errorf("dead letter says %q, want it to name Goexit", rec.Error)
	}
}

func TestR7AttemptsAfterATimeoutHaveALiveContext(t *testing.T) {
	// A timeout middleware left its dead context in the message: attempts 2 and on failed at once.
	b := newBench(t, func(c *runtime.Config) { c.Timeout = 20 * time.Millisecond })
	var runs atomic.Int64
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(ctx context.Context, _ order) error {
		if runs.Add(1) == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		return ctx.Err()
	})
	b.publish("orders", placed(t, "1"))
	b.start()
	b.eventually("handled", func() bool { return c.Stats().Effects == 1 })
	b.mustStop()
	if s := c.Stats(); s.Retries != 1 {
		t.Errorf("stats are %+v, want 1 retry", s)
	}
}

func TestTimeoutIsNamedInTheDeadLetter(t *testing.T) {
	b := newBench(t, func(c *runtime.Config) { c.Timeout = 5 * time.Millisecond })
	var runs atomic.Int64
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(ctx context.Context, o order) error {
		if o.ID == "other" {
			return nil
		}
		if runs.Add(1) == 2 {
			b.publish("orders", placed(t, "other", event.WithKey("another key"))) // succeeds: it is no outage
		}
		<-ctx.Done()
		return ctx.Err()
	})
	b.publish("orders", placed(t, "1"))
	b.start()
	rec := parseDead(t, b.dead("orders", 1)[0])
	b.mustStop()
	if !strings.Contains(rec.Error, "5ms") {
		t.Errorf("dead letter says %q, want it to name the limit 5ms", rec.Error)
	}
}

func TestRawHandlerOwnsItsMessageAndSeesNoReservedHeaders(t *testing.T) {
	b := newBench(t, nil)
	var seen []string
	var mu sync.Mutex
	c := b.rt.Consumer("billing", "orders")
	runtime.HandleMessage(c, runtime.AnyType, func(m *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, fmt.Sprint(m.Metadata["mine"], m.Metadata["headrace_id"]))
		m.Metadata["mine"] = "changed"
		m.Nack()
		if len(seen) < 2 {
			return errBroken
		}
		return nil
	})
	msg := placed(t, "1")
	msg.Metadata["headrace_id"] = "forged"
	b.publish("orders", msg)
	b.start()
	b.eventually("handled", func() bool { return c.Stats().Effects == 1 })
	b.mustStop()
	if want := []string{"", ""}; !slices.Equal(seen, want) {
		t.Errorf("attempts saw %q, want %q: no forged header, no change left by the first attempt", seen, want)
	}
}

func TestHandlePublishConfirmsItsOutputsBeforeTheAck(t *testing.T) {
	b := newBench(t, nil)
	var runs atomic.Int64
	c := b.rt.Consumer("billing", "orders")
	runtime.HandlePublish(c, "order.placed", "invoices", func(m *message.Message) ([]*message.Message, error) {
		out, err := event.New(m.Context(), "invoice.issued", order{ID: "i"})
		if err != nil {
			return nil, err
		}
		if runs.Add(1) == 1 {
			return []*message.Message{out}, errBroken // its outputs must be dropped (I4)
		}
		return []*message.Message{out}, nil
	})
	got := make(chan event.Envelope, 8)
	runtime.Handle(b.rt.Consumer("ledger", "invoices"), "invoice.issued", func(ctx context.Context, _ order) error {
		env, _ := event.FromContext(ctx)
		got <- env
		return nil
	})
	cause := placed(t, "1")
	b.publish("orders", cause)
	b.start()
	env := receive(t, "the invoice", got)
	b.eventually("acked", func() bool { return b.unacked("orders", "billing") == 0 })
	b.mustStop()
	if len(got) != 0 {
		t.Errorf("%d more invoices, want one only", len(got))
	}
	if env.CausationID != cause.Metadata[event.MetaID] || env.CorrelationID != cause.Metadata[event.MetaCorrelationID] {
		t.Errorf("invoice has causation %q and correlation %q, want %q and %q",
			env.CausationID, env.CorrelationID, cause.Metadata[event.MetaID], cause.Metadata[event.MetaCorrelationID])
	}
	if env.Source != "/test" {
		t.Errorf("invoice has source %q, want /test", env.Source)
	}
}

func insertEffect(ctx context.Context, tx *sql.Tx, o order) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effects (id) VALUES (?)`, o.ID)
	return err
}

func TestHandleTxTakesEffectOnceHoweverOftenDelivered(t *testing.T) {
	b, store := newBench(t, nil), openStore(t)
	var runs atomic.Int64
	c := b.rt.Consumer("billing", "orders")
	runtime.HandleTx(c, "order.placed", store, func(ctx context.Context, tx *sql.Tx, o order) error {
		if err := insertEffect(ctx, tx, o); err != nil {
			return err
		}
		if runs.Add(1) == 1 {
			return errBroken // fault I1: the first attempt fails after its claim and its effect
		}
		return nil
	})
	b.publish("orders", placed(t, "1"), placed(t, "1"), placed(t, "2"), placed(t, "1"))
	b.start()
	b.eventually("all acked", func() bool { return b.unacked("orders", "billing") == 0 })
	b.mustStop()
	if got, want := effects(t, store), []string{"1", "2"}; !slices.Equal(got, want) {
		t.Errorf("effects are %q, want %q", got, want)
	}
	if s := c.Stats(); s.Effects != 2 || s.Duplicates != 2 || s.Retries != 1 {
		t.Errorf("stats are %+v, want 2 effects, 2 duplicates, 1 retry", s)
	}
}

func TestI2TwoConsumersOfOneTopicEachTakeEffect(t *testing.T) {
	// The inbox was keyed by the id alone: the second consumer's claim was a duplicate of the first's.
	b, store := newBench(t, nil), openStore(t)
	for _, name := range []string{"billing", "shipping"} {
		runtime.HandleTx(b.rt.Consumer(name, "orders"), "order.placed", store, func(ctx context.Context, tx *sql.Tx, _ order) error {
			return insertEffect(ctx, tx, order{ID: name})
		})
	}
	b.publish("orders", placed(t, "1"))
	b.start()
	b.eventually("acked by both", func() bool { return b.unacked("orders", "billing")+b.unacked("orders", "shipping") == 0 })
	b.mustStop()
	got := effects(t, store)
	slices.Sort(got)
	if want := []string{"billing", "shipping"}; !slices.Equal(got, want) {
		t.Errorf("effects are %q, want %q", got, want)
	}
}

func TestStaleVersionIsSkippedAndCounted(t *testing.T) {
	b, store := newBench(t, nil), openStore(t)
	type versioned struct {
		ID      string `json:"id"`
		Version int64  `json:"version"`
	}
	c := b.rt.Consumer("billing", "orders")
	runtime.HandleTx(c, "order.placed", store, inbox.SkipStale(store,
		func(v versioned) (string, int64) { return v.ID, v.Version },
		func(ctx context.Context, tx *sql.Tx, v versioned) error {
			return insertEffect(ctx, tx, order{ID: fmt.Sprint(v.ID, v.Version)})
		}))
	for i, v := range []versioned{{"a", 2}, {"a", 1}, {"a", 2}, {"a", 3}, {"b", 1}} {
		b.publish("orders", newEvent(t, "order.placed", v, event.WithID(fmt.Sprint(i)), event.WithKey("k")))
	}
	b.start()
	b.eventually("all acked", func() bool { return b.unacked("orders", "billing") == 0 })
	b.mustStop()
	// Older than what was applied is skipped; the same version again is another state of that version.
	if got, want := effects(t, store), []string{"a2", "a2", "a3", "b1"}; !slices.Equal(got, want) {
		t.Errorf("effects are %q, want %q", got, want)
	}
	if s := c.Stats(); s.Effects != 4 || s.Stale != 1 {
		t.Errorf("stats are %+v, want 4 effects, 1 stale", s)
	}
}

func TestI5MessageWithoutAnyIDIsRefusedByHandleTxOnly(t *testing.T) {
	// Foreign producers sent no id: everything was a duplicate of "".
	b, store := newBench(t, func(c *runtime.Config) { c.Broker = anonymous{c.Broker} }), openStore(t)
	plain := func(*message.Message) string { return "order.placed" }
	tx := b.rt.ConsumerWith(runtime.ConsumerConfig{Name: "billing", Topic: "orders", Type: plain})
	runtime.HandleTx(tx, "order.placed", store, insertEffect)
	once := b.rt.ConsumerWith(runtime.ConsumerConfig{Name: "mailing", Topic: "orders", Type: plain})
	runtime.Handle(once, "order.placed", handleNothing)
	natural := b.rt.ConsumerWith(runtime.ConsumerConfig{
		Name: "ledger", Topic: "orders", Type: plain,
		ID: func(m *message.Message) string { return string(m.Payload) },
	})
	runtime.HandleTx(natural, "order.placed", store, insertEffect)

	msg := message.NewMessage("", []byte(`{"id":"1"}`))
	b.publish("orders", msg, msg.Copy())
	b.start()
	b.eventually("settled", func() bool {
		return tx.Stats().DeadLettered == 2 && once.Stats().Effects == 2 && natural.Stats().Effects == 1 && natural.Stats().Duplicates == 1
	})
	rec := parseDead(t, b.dead("orders", 1)[0])
	b.mustStop()
	if !strings.Contains(rec.Error, "id") || rec.Consumer != "billing" {
		t.Errorf("dead letter of %s says %q, want billing's, naming the id", rec.Consumer, rec.Error)
	}
	if got, want := effects(t, store), []string{"1"}; !slices.Equal(got, want) {
		t.Errorf("effects are %q, want %q", got, want)
	}
}

// A middleware may replace the message's context only by one made of it. One that did not was answered with a
// panic for a nil pointer in the dead letter.
func TestMiddlewareThatLosesTheContextIsNamed(t *testing.T) {
	for name, lose := range map[string]func(*message.Message) *message.Message{
		"bare context": func(m *message.Message) *message.Message { m.SetContext(context.Background()); return m },
		"copy":         func(m *message.Message) *message.Message { return m.Copy() },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(c *runtime.Config) {
				c.Middleware = []message.HandlerMiddleware{func(h message.HandlerFunc) message.HandlerFunc {
					return func(m *message.Message) ([]*message.Message, error) { return h(lose(m)) }
				}}
			})
			runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", handleNothing)
			b.publish("orders", placed(t, "1"))
			b.start()
			rec := parseDead(t, b.dead("orders", 1)[0])
			b.mustStop()
			if !strings.Contains(rec.Error, "middleware") || !strings.Contains(rec.Error, "context") {
				t.Errorf("dead letter says %q, want it to blame a middleware for the context", rec.Error)
			}
		})
	}
}

func TestHandleTxThatGivesUpQuietlyAtItsLimitIsRolledBack(t *testing.T) {
	b, store := newBench(t, func(c *runtime.Config) { c.Timeout = 20 * time.Millisecond }), openStore(t)
	var runs atomic.Int64
	c := b.rt.Consumer("billing", "orders")
	runtime.HandleTx(c, "order.placed", store, func(ctx context.Context, tx *sql.Tx, o order) error {
		if runs.Add(1) == 1 {
			<-ctx.Done()
			return nil
		}
		return insertEffect(ctx, tx, o)
	})
	b.publish("orders", placed(t, "1"))
	b.start()
	b.eventually("handled", func() bool { return c.Stats().Effects == 1 })
	b.mustStop()
	if got, want := effects(t, store), []string{"1"}; !slices.Equal(got, want) || c.Stats().Retries != 1 {
		t.Errorf("effects are %q after %d retries, want %q after 1", got, c.Stats().Retries, want)
	}
}

func TestTheRetryPolicysOwnClassifierIsUsed(t *testing.T) {
	b := newBench(t, func(c *runtime.Config) {
		c.Retry.Classifier = classify.New(func(err error) (classify.Result, bool) {
			return classify.Result{Verdict: classify.VerdictPoison, ErrorType: "mine"}, true
		})
	})
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(context.Context, order) error { return errBroken })
	b.publish("orders", placed(t, "1"))
	b.start()
	rec := parseDead(t, b.dead("orders", 1)[0])
	b.mustStop()
	if rec.ErrorType != "mine" || rec.Attempts != 1 {
		t.Errorf("dead letter has error type %q after %d attempts, want mine after 1", rec.ErrorType, rec.Attempts)
	}
}
