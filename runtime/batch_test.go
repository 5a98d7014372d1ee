package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/testonly"
)

type payment struct {
	ID    string   `json:"id"`
	Marks []string `json:"marks"`
}

// publishPayments publishes n payments, p0 first, each with a key of its own.
func publishPayments(b *bench, n int) {
	b.t.Helper()
	ctx := event.ContextWithSource(b.t.Context(), "/shop")
	for i := range n {
		id := fmt.Sprint("p", i)
		msg, err := event.New(ctx, "payment.made", payment{ID: id, Marks: []string{"clean"}}, event.WithID(id), event.WithKey(id))
		if err != nil {
			b.t.Fatal(err)
		}
		b.publish("payments", msg)
	}
}

func TestHandleBatchCommitsABatchAndSplitsOneThatFails(t *testing.T) {
	// Without a breaker: it would hold p7 until another payment succeeds after p7 had failed.
	b := newBench(t, func(c *runtime.Config) { c.Breaker.Off = true })
	store := testonly.New()
	var mu sync.Mutex
	var largest int
	attempts := map[string]int{}
	c := b.rt.Consumer("books", "payments")
	const n = 40
	runtime.HandleBatch(c, "payment.made", store, inbox.GroupConfig{Max: n, Linger: limit}, func(ctx context.Context, tx *testonly.Tx, events []runtime.BatchEvent[payment]) error {
		mu.Lock()
		defer mu.Unlock()
		largest = max(largest, len(events))
		failed := error(nil)
		for _, e := range events {
			if e.Value.Marks[0] != "clean" {
				t.Errorf("%s was changed by the run before: %q", e.Value.ID, e.Value.Marks)
			}
			e.Value.Marks[0] = "changed"
			own := e.Context(ctx)
			if got := event.MessageID(own); !strings.Contains(got, e.Value.ID) || event.MessageID(ctx) != "" || e.Envelope.ID != e.Value.ID {
				t.Errorf("%s: message id %q of its own context, %q of the batch's, envelope %q", e.Value.ID, got, event.MessageID(ctx), e.Envelope.ID)
			}
			out, err := event.New(own, "booked", nil)
			if err != nil {
				t.Errorf("an event made for %s: %v", e.Value.ID, err)
				continue
			}
			tx.Set(e.Value.ID, tx.Get(e.Value.ID)+out.Metadata[event.MetaCausationID])
			if e.Value.ID == "p7" {
				if len(events) == 1 {
					attempts["p7"]++
				}
				failed = classify.Permanent(errors.New("bad payment"))
			}
		}
		return failed
	})
	publishPayments(b, n)
	b.start()
	if dead := b.dead("payments", 1); dead[0].Metadata[event.MetaID] != "p7" {
		t.Errorf("dead letter of %q, want p7", dead[0].Metadata[event.MetaID])
	}
	b.eventually("all but one took effect", func() bool { return c.Stats().Effects == n-1 })
	b.mustStop()
	for i := range n {
		id := fmt.Sprint("p", i)
		want := id
		if id == "p7" {
			want = ""
		}
		if got := store.Get(id); got != want {
			t.Errorf("%s: effect %q, want %q", id, got, want)
		}
	}
	if s := c.Stats(); s.Retries != 0 || s.DeadLettered != 1 || attempts["p7"] != 1 {
		t.Errorf("stats %+v, p7 ran alone %d times; want no retry, and once", s, attempts["p7"])
	}
	if largest != n {
		t.Errorf("the largest batch had %d events, want %d", largest, n)
	}
}

// What a handler changed in its event was seen by its second run in the same attempt.
func TestHandleTxOnGroupsDecodesAgainForTheSecondRun(t *testing.T) {
	b := newBench(t, nil)
	store := testonly.New()
	var splits atomic.Int64
	const n = 40
	grouped := inbox.Grouped(store, inbox.GroupConfig{Max: n, Linger: limit, OnSplit: func(context.Context, int, error) { splits.Add(1) }})
	c := b.rt.Consumer("books", "payments")
	var mu sync.Mutex
	var bad []string
	runtime.HandleTx(c, "payment.made", grouped, func(_ context.Context, tx *testonly.Tx, p payment) error {
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(p.Marks, []string{"clean"}) {
			bad = append(bad, fmt.Sprint(p))
		}
		p.Marks[0] = "changed"
		if p.ID == "p7" && splits.Load() == 0 {
			return errors.New("once")
		}
		tx.Set(p.ID, tx.Get(p.ID)+"x")
		return nil
	})
	publishPayments(b, n)
	b.start()
	b.eventually("all took effect", func() bool { return c.Stats().Effects == n })
	b.mustStop()
	if len(bad) > 0 || splits.Load() != 1 {
		t.Errorf("%d splits; changed events %q; want 1 and none", splits.Load(), bad)
	}
	for i := range n {
		if got := store.Get(fmt.Sprint("p", i)); got != "x" {
			t.Errorf("p%d: effect %q, want one", i, got)
		}
	}
}

func TestHandleBatchReportsMistakesInTheWiring(t *testing.T) {
	b := newBench(t, nil)
	store := testonly.New()
	c := b.rt.Consumer("books", "payments")
	handle := func(context.Context, *testonly.Tx, []runtime.BatchEvent[payment]) error { return nil }
	runtime.HandleBatch(c, "a", store, inbox.GroupConfig{Max: 1000}, handle)
	runtime.HandleBatch[*testonly.Tx, payment](c, "b", nil, inbox.GroupConfig{}, nil)
	runtime.HandleBatch[*testonly.Tx, payment](c, "c", store, inbox.GroupConfig{}, nil)
	err := b.rt.Run(t.Context())
	for _, want := range []string{`"a": inbox: GroupConfig.Max is 1000: want 1 to 200`, `the store of the handler for "b" is nil`, `the handler for "c" is nil`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run: %v; want an error with %q", err, want)
		}
	}
}

func ExampleHandleBatch() {
	var consumer *runtime.Consumer // of rt.Consumer
	var store inbox.Store[*testonly.Tx]
	register := func() {
		runtime.HandleBatch(consumer, "payment.made", store, inbox.GroupConfig{Max: 100},
			func(_ context.Context, tx *testonly.Tx, events []runtime.BatchEvent[payment]) error {
				// On Postgres: UPDATE accounts ... FROM unnest($1, $2), one statement for all.
				for _, e := range events {
					tx.Set(e.Value.ID, "booked")
				}
				return nil
			})
	}
	_ = register
}
