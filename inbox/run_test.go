package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/stores/testonly"
)

type order struct {
	ID      string
	Version int64
}

func orderVersion(o order) (string, int64) { return o.ID, o.Version }

func save(_ context.Context, tx *testonly.Tx, o order) error {
	tx.Set(o.ID, fmt.Sprint(o.Version))
	return nil
}

// delivered is a message as a plain Watermill router hands it to a handler.
func delivered(uuid string) *message.Message {
	msg := message.NewMessage(uuid, nil)
	msg.SetContext(brokers.WithDelivery(context.Background(), &brokers.Delivery{Topic: "orders", Partition: -1, Offset: -1}))
	return msg
}

func receipt(msg *message.Message) flight.Receipt { return flight.From(msg.Context()).Receipt() }

func TestHandlerGivesTheReceiptOfWhatHappened(t *testing.T) {
	store := testonly.New()
	errHandler := errors.New("failed")
	handle := func(o order, fail error) message.NoPublishHandlerFunc {
		guarded := inbox.SkipStale(store, orderVersion, save)
		return inbox.Handler(store, "billing", func(ctx context.Context, tx *testonly.Tx, _ *message.Message) error {
			return errors.Join(guarded(ctx, tx, o), fail)
		})
	}
	for _, tc := range []struct {
		name, uuid string
		order      order
		fail       error
		want       flight.Receipt
		value      string
	}{
		{"new", "1", order{"o", 2}, nil, flight.Committed, "2"},
		{"the same again", "1", order{"o", 2}, nil, flight.Duplicate, "2"},
		{"older", "2", order{"o", 1}, nil, flight.Stale, "2"},
		{"older again: its claim was committed", "2", order{"o", 1}, nil, flight.Duplicate, "2"},
		{"failed", "3", order{"o", 3}, errHandler, flight.NoReceipt, "2"},
		{"failed and stale: nothing was committed", "4", order{"o", 1}, errHandler, flight.NoReceipt, "2"},
		{"the failed one again", "3", order{"o", 3}, nil, flight.Committed, "3"},
	} {
		msg := delivered(tc.uuid)
		err := handle(tc.order, tc.fail)(msg)
		if !errors.Is(err, tc.fail) || (tc.fail == nil && err != nil) {
			t.Errorf("%s: error %v, want %v", tc.name, err, tc.fail)
		}
		if got := receipt(msg); got != tc.want {
			t.Errorf("%s: receipt %s, want %s", tc.name, got, tc.want)
		}
		if got := store.Get("o"); got != tc.value {
			t.Errorf("%s: the order has version %s, want %s", tc.name, got, tc.value)
		}
	}
}

// A stale message's receipt was given before its COMMIT, the handler panicked, a middleware swallowed
// that, and the message was acked with nothing committed.
func TestI2NoReceiptAfterAPanic(t *testing.T) {
	store := testonly.New()
	guarded := inbox.SkipStale(store, orderVersion, save)
	handler := inbox.Handler(store, "billing", func(ctx context.Context, tx *testonly.Tx, _ *message.Message) error {
		if err := guarded(ctx, tx, order{"o", 1}); err != nil {
			return err
		}
		if err := guarded(ctx, tx, order{"o", 1}); err != nil {
			return err
		}
		panic("boom")
	})
	msg := delivered("1")
	func() {
		defer func() { _ = recover() }()
		_ = handler(msg)
	}()
	if got := receipt(msg); got != flight.NoReceipt {
		t.Errorf("receipt %s after a panic, want none", got)
	}
}

// Foreign producers send no id, and everything was a duplicate of "".
func TestI5MessageWithoutAnyIdIsRefused(t *testing.T) {
	handler := inbox.Handler(testonly.New(), "billing", func(context.Context, *testonly.Tx, *message.Message) error {
		t.Error("the handler ran")
		return nil
	})
	msg := delivered("")
	err := handler(msg)
	if v := new(classify.Classifier).Classify(err).Verdict; err == nil || v != classify.VerdictPoison || !strings.Contains(err.Error(), "billing") {
		t.Errorf("error %v, verdict %v; want a permanent error that names the consumer", err, v)
	}
	if got := receipt(msg); got != flight.NoReceipt {
		t.Errorf("receipt %s, want none", got)
	}
}

func TestRunTakesConsumerAndIdFromTheFlight(t *testing.T) {
	store := testonly.New()
	run := func(consumer, id string) flight.Receipt {
		msg := delivered("uuid")
		f := flight.Ensure(msg)
		f.Consumer, f.ID = consumer, id
		err := inbox.Run(msg.Context(), store, msg, func(_ context.Context, tx *testonly.Tx) error {
			tx.Set(consumer, tx.Get(consumer)+"x")
			return nil
		})
		if err != nil {
			t.Fatalf("Run of %q for %q: %v", id, consumer, err)
		}
		return f.Receipt()
	}
	for _, tc := range []struct {
		consumer, id string
		want         flight.Receipt
	}{
		{"billing", "natural-key", flight.Committed},
		{"billing", "natural-key", flight.Duplicate},
		{"mail", "natural-key", flight.Committed}, // I2: another consumer's inbox
		{"billing", "", flight.Committed},         // falls back to the message's own id
		{"billing", "", flight.Duplicate},
	} {
		if got := run(tc.consumer, tc.id); got != tc.want {
			t.Errorf("Run of %q for %q: receipt %s, want %s", tc.id, tc.consumer, got, tc.want)
		}
	}
	if got := store.Get("billing"); got != "xx" {
		t.Errorf("effects of billing: %q, want xx", got)
	}
}

func TestOutsideOfAConsumerIsRefused(t *testing.T) {
	store, ctx := testonly.New(), context.Background()
	run := inbox.Run(ctx, store, delivered("1"), func(context.Context, *testonly.Tx) error { return nil })
	guard := inbox.SkipStale(store, orderVersion, save)(ctx, new(testonly.Tx), order{"o", 1})
	for name, err := range map[string]error{"Run": run, "SkipStale": guard} {
		if !errors.Is(err, inbox.ErrNoConsumer) || new(classify.Classifier).Classify(err).Verdict != classify.VerdictPoison {
			t.Errorf("%s: %v; want a permanent ErrNoConsumer", name, err)
		}
	}
}

func TestWiringMistakesPanicAtStart(t *testing.T) {
	store := testonly.New()
	handler := func(context.Context, *testonly.Tx, *message.Message) error { return nil }
	for name, wire := range map[string]func(){
		"Handler without a store":    func() { inbox.Handler(nil, "c", handler) },
		"Handler without a consumer": func() { inbox.Handler(store, "", handler) },
		"Handler without a function": func() { inbox.Handler[*testonly.Tx](store, "c", nil) },
		"SkipStale without a store":  func() { inbox.SkipStale(nil, orderVersion, save) },
		"Map without a function":     func() { inbox.Map[*testonly.Tx, int](store, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			wire()
		}()
	}
}

func TestSameSeesThroughMap(t *testing.T) {
	a, b := testonly.New(), testonly.New()
	once := inbox.Map(a, func(tx *testonly.Tx) []*testonly.Tx { return []*testonly.Tx{tx} })
	twice := inbox.Map(once, func(txs []*testonly.Tx) int { return len(txs) })
	for _, tc := range []struct {
		name string
		x, y inbox.Database
		want bool
	}{
		{"itself", a, a, true},
		{"mapped", a, once, true},
		{"mapped twice", twice, a, true},
		{"both mapped", once, twice, true},
		{"another", a, b, false},
		{"mapped and another", twice, b, false},
	} {
		if got := inbox.Same(tc.x, tc.y); got != tc.want {
			t.Errorf("Same of %s: %t, want %t", tc.name, got, tc.want)
		}
	}
}

func TestAdvanceThroughMapNeedsOncesContext(t *testing.T) {
	store := inbox.Map(testonly.New(), func(tx *testonly.Tx) string { return "repository" })
	_, err := store.Advance(t.Context(), "repository", "c", "e", 1)
	if err == nil || !strings.Contains(err.Error(), "context") {
		t.Errorf("Advance outside of Once: %v; want an error about the context", err)
	}
}

func ExampleSkipStale() {
	store := testonly.New()
	guarded := inbox.SkipStale(store, orderVersion, save)
	events := map[string]order{"a": {"order-1", 1}, "b": {"order-1", 3}, "c": {"order-1", 2}}
	handler := inbox.Handler(store, "billing", func(ctx context.Context, tx *testonly.Tx, msg *message.Message) error {
		return guarded(ctx, tx, events[msg.UUID])
	})
	for _, uuid := range []string{"a", "b", "c"} { // 2 comes after 3
		fmt.Println(handler(delivered(uuid)), store.Get("order-1"))
	}
	// Output:
	// <nil> 1
	// <nil> 3
	// <nil> 3
}

// orders is an application's own repository.
type orders struct{ tx *testonly.Tx }

func (o orders) pay(id string) { o.tx.Set(id, "paid") }

func ExampleMap() {
	store := testonly.New()
	repository := inbox.Map(store, func(tx *testonly.Tx) orders { return orders{tx} })
	handler := inbox.Handler(repository, "billing", func(_ context.Context, o orders, msg *message.Message) error {
		o.pay(msg.UUID)
		return nil
	})
	fmt.Println(handler(delivered("order-1")), store.Get("order-1"))
	// Output: <nil> paid
}
