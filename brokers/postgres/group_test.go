package postgres_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/stores/schema"
)

// limit bounds the wait for whatever has to come.
const limit = 30 * time.Second

func itoa(i int) string { return strconv.Itoa(i) }

func keyed(id, key string) *message.Message {
	m := message.NewMessage(id, []byte(id))
	m.Metadata[event.MetaPartitionKey] = key
	return m
}

func publishIDs(tb testing.TB, b *postgres.Broker, topic string, ids ...string) {
	tb.Helper()
	list := make([]*message.Message, len(ids))
	for i, id := range ids {
		list[i] = keyed(id, "key")
	}
	adaptertest.Publish(tb, b, topic, list...)
}

// ack acks the next n messages and returns their ids.
func ack(tb testing.TB, in <-chan *message.Message, n int) []string {
	tb.Helper()
	var ids []string
	for range n {
		m := adaptertest.Next(tb, in)
		ids = append(ids, m.UUID)
		m.Ack()
	}
	return ids
}

func wantIDs(tb testing.TB, what string, got []string, want ...string) {
	tb.Helper()
	if !slices.Equal(got, want) {
		tb.Errorf("%s received %q, want %q", what, got, want)
	}
}

func (e *env) eventually(what string, ok func() bool) {
	e.Helper()
	adaptertest.Eventually(e, func() (bool, string) { return ok(), "not yet: " + what })
}

// K10: what was published before anybody came belongs to the first consumer; nothing is lost and nothing is kept twice.
func TestFirstConsumerInheritsWhatCameBefore(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	publishIDs(t, b, "orders", "1", "2")
	_, first := adaptertest.Subscribe(t, b, "first", "orders", 4)
	wantIDs(t, "the first consumer", ack(t, first, 2), "1", "2")
	_, second := adaptertest.Subscribe(t, b, "second", "orders", 4)
	publishIDs(t, b, "orders", "3")
	wantIDs(t, "the first consumer", ack(t, first, 1), "3")
	wantIDs(t, "the second consumer, which came later,", ack(t, second, 1), "3")
	e.eventually("all rows are deleted", func() bool { return e.rows() == 0 })
}

// A transaction publishes to a topic without consumers; the first consumer comes before it commits.
func TestFirstConsumerGetsWhatIsCommittedLater(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	publishIDs(t, b, "orders", "1")
	tx, err := e.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if err := b.PublisherTx(t.Context(), tx).Publish("orders", keyed("2", "key")); err != nil {
		t.Fatal(err)
	}
	_, in := adaptertest.Subscribe(t, b, "first", "orders", 4)
	wantIDs(t, "the first consumer", ack(t, in, 1), "1")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, "the first consumer", ack(t, in, 1), "2")
}

func TestRegisteredTogetherAllGetWhatCameBefore(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	publishIDs(t, b, "orders", "1", "2")
	tx, err := e.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if err := b.PublisherTx(t.Context(), tx).Publish("orders", keyed("3", "key")); err != nil {
		t.Fatal(err)
	}
	registered := make(chan error, 1)
	go func() { registered <- b.Register(t.Context(), "orders", "a", "b", "c") }()
	select {
	case err := <-registered:
		t.Fatalf("Register returned %v while a transaction that has published is open; its message could be missed", err)
	case <-time.After(300 * time.Millisecond):
	}
	publishIDs(t, b, "orders", "4") // publishers are not locked out meanwhile
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-registered; err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"a", "b", "c"} {
		_, in := adaptertest.Subscribe(t, b, c, "orders", 8)
		wantIDs(t, "consumer "+c, ack(t, in, 4), "1", "2", "3", "4")
	}
}

func TestManyRegisterAtOnce(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	errs := make(chan error, 24)
	for i := range 24 {
		go func() {
			if i%3 == 0 {
				pub, err := b.Publisher()
				if err == nil {
					err = pub.Publish("orders", keyed(strconv.Itoa(i), "key"))
				}
				errs <- err
				return
			}
			errs <- b.Register(t.Context(), "orders", "c"+strconv.Itoa(i%3))
		}()
	}
	for range 24 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := e.number("SELECT count(*) FROM " + e.table("group")); got != 2 {
		t.Errorf("there are %d groups, want 2: nobody's rows must not stay beside those of consumers", got)
	}
	seen := map[string]bool{}
	for _, c := range []string{"c1", "c2"} {
		n := int(e.number("SELECT count(*) FROM "+e.table("message")+" JOIN "+e.table("group")+" g ON g.id = group_id WHERE consumer = $1", c))
		_, in := adaptertest.Subscribe(t, b, c, "orders", 8)
		for _, id := range ack(t, in, n) {
			seen[id] = true
		}
	}
	if len(seen) != 8 {
		t.Errorf("%d of 8 messages reached a consumer: %v", len(seen), seen)
	}
}

func TestUnregisterDeletesAndEndsSubscriptions(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	_, in := adaptertest.Subscribe(t, b, "old", "orders", 1)
	publishIDs(t, b, "orders", "1", "2", "3")
	m := adaptertest.Next(t, in)
	if err := b.Unregister(t.Context(), "orders", "old"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.Context().Done():
	case <-time.After(limit):
		t.Error("the delivery's context did not end")
	}
	for range in { // until it is closed
	}
	if got := e.rows(); got != 0 {
		t.Errorf("%d messages are left, want 0", got)
	}
	if err := b.Unregister(t.Context(), "orders", "old"); err != nil {
		t.Errorf("the second Unregister: %v, want nil", err)
	}
}

func TestFullTopicRefuses(t *testing.T) {
	e := newEnv(t)
	config := e.config()
	config.MaxBacklog = 5
	b := open(t, config)
	if err := b.Register(t.Context(), "orders", "quick", "slow"); err != nil {
		t.Fatal(err)
	}
	publishIDs(t, b, "orders", "1", "2", "3", "4", "5", "6")
	b = open(t, config) // it counts at once
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	var full error
	n := int64(6)
	e.eventually("Publish is refused", func() bool {
		if full = pub.Publish("orders", keyed("more", "key")); full == nil {
			n++
		}
		return full != nil
	})
	if !errors.Is(full, postgres.ErrFull) || !strings.Contains(full.Error(), `"orders"`) || !strings.Contains(full.Error(), `"quick"`) || !strings.Contains(full.Error(), "5 messages") {
		t.Errorf("Publish gave %v, want ErrFull that names the topic, the consumer and the bound", full)
	}
	if got := e.rows(); got != 2*n {
		t.Errorf("%d rows are stored, want %d: what was refused is not there, what was not is", got, 2*n)
	}
}

func TestLagIsWhatIsNotAcked(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	if lag, known := b.Lag("c", "orders"); known {
		t.Errorf("Lag without a subscription is %d and known, want not known", lag)
	}
	publishIDs(t, b, "orders", "1", "2", "3")
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 1)
	adaptertest.Next(t, in)
	e.eventually("the lag is 3", func() bool {
		lag, known := b.Lag("c", "orders")
		return known && lag == 3
	})
	if lag, known := b.Lag("other", "orders"); known {
		t.Errorf("Lag of another consumer is %d and known, want not known", lag)
	}
}

func TestConfigErrorsNameTheField(t *testing.T) {
	e := newEnv(t)
	for _, tt := range []struct {
		config postgres.Config
		want   string
	}{
		{postgres.Config{}, "Config.Pool is nil"},
		{postgres.Config{Pool: e.pool, Window: -1}, "Config.Window is -1"},
		{postgres.Config{Pool: e.pool, LeaseTTL: time.Millisecond}, "Config.LeaseTTL is 1ms"},
		{postgres.Config{Pool: e.pool, PollMin: 1}, "Config.PollMin is 1ns"},
		{postgres.Config{Pool: e.pool, PollMin: time.Second, PollMax: time.Millisecond}, "Config.PollMax is 1ms"},
		{postgres.Config{Pool: e.pool, NackDelay: -1}, "Config.NackDelay is -1ns"},
		{postgres.Config{Pool: e.pool, NackDelay: time.Second, MaxNackDelay: 1}, "Config.MaxNackDelay is 1ns"},
		{postgres.Config{Pool: e.pool, MaxBacklog: -2}, "Config.MaxBacklog is -2"},
		{postgres.Config{Pool: e.pool, PublishTimeout: -1}, "Config.PublishTimeout is -1ns"},
		{postgres.Config{Pool: e.pool, CloseTimeout: -1}, "Config.CloseTimeout is -1ns"},
		{postgres.Config{Pool: e.pool, Schema: "a b"}, `schema name "a b"`},
		{postgres.Config{Pool: e.pool, Prefix: "1"}, `table prefix "1"`},
	} {
		if _, err := postgres.New(tt.config); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%+v) gave %v, want an error with %q", tt.config, err, tt.want)
		}
	}
}

func TestMissingTablesAreExplained(t *testing.T) {
	e := newEnv(t)
	config := e.config()
	config.Prefix = "absent_"
	b := open(t, config)
	_, err := b.Subscriber(brokers.Subscription{Consumer: "c", Topic: "orders"})
	if !errors.Is(err, schema.ErrNotMigrated) {
		t.Errorf("Subscriber gave %v, want ErrNotMigrated", err)
	}
	pub, perr := b.Publisher()
	if perr != nil {
		t.Fatal(perr)
	}
	if err := pub.Publish("orders", keyed("1", "key")); !errors.Is(err, schema.ErrNotMigrated) {
		t.Errorf("Publish gave %v, want ErrNotMigrated", err)
	}
}
