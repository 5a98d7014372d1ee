package postgres_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/telemetry"
)

// The effect and the event are one transaction, whichever way it ends.
func TestPublishedInATransactionOrNotAtAll(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 4)
	for _, tt := range []struct {
		id     string
		commit bool
	}{{"rolled back", false}, {"committed", true}} {
		tx, err := e.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pub := b.PublisherTx(event.ContextWithCorrelation(t.Context(), "correlation"), tx)
		m := keyed(tt.id, "key")
		if err := pub.Publish("orders", m); err != nil {
			t.Fatal(err)
		}
		if len(m.Metadata) != 1 {
			t.Errorf("the caller's message was changed: %v", m.Metadata)
		}
		if tt.commit {
			err = tx.Commit(t.Context())
			pub.Wake()
		} else {
			err = tx.Rollback(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	m := adaptertest.Next(t, in)
	if m.UUID != "committed" {
		t.Errorf("received %q, want %q: the other was rolled back", m.UUID, "committed")
	}
	if got := m.Metadata[event.MetaCorrelationID]; got != "correlation" {
		t.Errorf("%s is %q, want that of the context", event.MetaCorrelationID, got)
	}
	m.Ack()
	e.eventually("no row is left", func() bool { return e.rows() == 0 })
}

// Polling is out of the question for a minute: only a wake-up can bring the messages.
func TestWokenAcrossProcesses(t *testing.T) {
	e := newEnv(t)
	config := postgres.Config{Pool: e.pool, Schema: e.schema, PollMin: time.Minute, PollMax: time.Minute}
	consumer, producer := open(t, config), open(t, config)
	_, in := adaptertest.Subscribe(t, consumer, "c", "orders", 4)
	publishIDs(t, producer, "orders", "0")
	ack(t, in, 1) // it listens and has read all there is
	publishIDs(t, producer, "orders", "1")
	wantIDs(t, "after Publish", ack(t, in, 1), "1")
	tx, err := e.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := producer.PublisherTx(t.Context(), tx).Publish("orders", keyed("2", "key")); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, "after a commit that nobody told of", ack(t, in, 1), "2")
}

func TestDelayedMessageComesInItsTime(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	_, a := adaptertest.Subscribe(t, b, "a", "orders", 4)
	_, c := adaptertest.Subscribe(t, b, "c", "orders", 4)
	late := keyed("late", "key")
	at := time.Now().Add(1500 * time.Millisecond)
	late.SetContext(postgres.WithAvailableAt(t.Context(), at))
	adaptertest.Publish(t, b, "orders", keyed("1", "key"), late, keyed("2", "key"))
	for name, in := range map[string]<-chan *message.Message{"a": a, "c": c} {
		wantIDs(t, name, ack(t, in, 3), "1", "2", "late")
	}
	if now := time.Now(); now.Before(at.Add(-50 * time.Millisecond)) { // two clocks
		t.Errorf("it came at %v, before its time %v", now, at)
	}
	e.eventually("no row is left", func() bool {
		return e.rows() == 0 && e.number("SELECT count(*) FROM "+e.table("delayed")) == 0
	})
}

func TestWhatCannotBeStoredIsRefusedForGood(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	large := keyed("large", "key")
	large.Metadata["x"] = strings.Repeat("x", postgres.MaxMetadataBytes)
	for _, tt := range []struct {
		topic string
		m     *message.Message
		want  string
	}{
		{"orders", nil, "message \"\" (2 of 2)"},
		{"orders", large, "metadata has"},
		{"orders", keyed("1", strings.Repeat("k", postgres.MaxKeyBytes+1)), "key has 1025 bytes"},
		{"orders", message.NewMessage(strings.Repeat("u", postgres.MaxUUIDBytes+1), nil), "UUID has 1025 bytes"},
		{"orders", message.NewMessage("1", make([]byte, postgres.MaxPayloadBytes+1)), "payload has"},
		{strings.Repeat("t", postgres.MaxNameBytes+1), keyed("1", "k"), "topic \"tttt"},
		{"a\x00b", keyed("1", "k"), "topic \"a\\x00b\""},
		{"\xff", keyed("1", "k"), "not text"},
	} {
		err := pub.Publish(tt.topic, keyed("0", "k"), tt.m)
		if !errors.Is(err, postgres.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Publish gave %v, want ErrInvalid with %q", err, tt.want)
		}
		if tt.topic == "orders" && classify.New().Classify(err).Verdict != classify.VerdictPoison {
			t.Errorf("the error %v is not permanent", err)
		}
	}
	if got := e.rows(); got != 0 {
		t.Errorf("%d rows are stored, want 0: a batch is refused as a whole", got)
	}
}

// More messages than one statement takes are one transaction all the same, in order.
func TestLargeBatchKeepsItsOrder(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	const n = 2_500
	batch := make([]*message.Message, n)
	for i := range batch {
		batch[i] = keyed(strings.Repeat("0", 4-len(itoa(i)))+itoa(i), "key")
	}
	adaptertest.Publish(t, b, "orders", batch...)
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 100)
	for i, id := range ack(t, in, n) {
		if id != batch[i].UUID {
			t.Fatalf("message %d is %s, want %s", i, id, batch[i].UUID)
		}
	}
}

func TestKeysAreThoseOfEvent(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	subject, both, none := message.NewMessage("subject", nil), message.NewMessage("both", nil), message.NewMessage("none", nil)
	subject.Metadata[event.MetaSubject] = "s"
	both.Metadata[event.MetaSubject] = "s"
	both.Metadata[event.MetaPartitionKey] = "p"
	adaptertest.Publish(t, b, "orders", subject, both, none)
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 3)
	want := map[string][]byte{"subject": []byte("s"), "both": []byte("p"), "none": nil}
	for range 3 {
		m := adaptertest.Next(t, in)
		got := brokers.DeliveryOf(m.Context()).Key
		if w := want[m.UUID]; string(got) != string(w) || (got == nil) != (w == nil) {
			t.Errorf("message %s: Delivery.Key is %q (nil: %v), want %q", m.UUID, got, got == nil, w)
		}
		m.Ack()
	}
}

func TestTraceOfTheHandlerGoesOn(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 1)
	parent := message.Metadata{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	tx, err := e.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.PublisherTx(telemetry.Extract(t.Context(), parent), tx).Publish("orders", keyed("1", "k")); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := adaptertest.Next(t, in)
	if got := m.Metadata["traceparent"]; !strings.Contains(got, "0af7651916cd43dd8448eb211c80319c") {
		t.Errorf("traceparent is %q, want the trace of the context", got)
	}
	m.Ack()
}
