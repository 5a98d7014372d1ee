package outboxsuite

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/outbox"
)

// bury gives rows up.
func (s Subject[Tx]) bury(t *testing.T, leases []outbox.Lease, block bool, rows ...outbox.Row) {
	t.Helper()
	for _, r := range rows {
		held, err := s.Source.Bury(testContext(t), "a", leases[r.Bucket], outbox.Burial{Topic: r.Topic, ID: r.ID, Block: block})
		if err != nil || !held {
			t.Fatalf("bury row %d: got %t, %v; want true", r.ID, held, err)
		}
	}
}

// Its key has gone on without it: an old id would only make it look as if it had not.
func testReviveSkipped[Tx any](t *testing.T, s Subject[Tx]) {
	ctx := testContext(t)
	s.add(t, "orders", keyed("1", "k"), keyed("2", "k"))
	rows := s.fetch(t, "orders")
	s.bury(t, s.lease(t, "a", time.Minute).Leases, false, rows[0])
	for _, want := range []bool{true, false} {
		if ok, err := s.Source.Revive(ctx, rows[0].ID); err != nil || ok != want {
			t.Errorf("revive: got %t, %v; want %t", ok, err, want)
		}
	}
	wantUUIDs(t, "rows", s.fetch(t, "orders"), "2", "1")
}

func testDeadTopics[Tx any](t *testing.T, s Subject[Tx]) {
	ctx := testContext(t)
	if got, err := s.Source.DeadTopics(ctx, 10); err != nil || len(got) != 0 {
		t.Errorf("none is dead: got %v, %v; want nothing", got, err)
	}
	leases := s.lease(t, "a", time.Minute).Leases
	for topic, n := range map[string]int{"a": 1, "B": 2, "c": 3} {
		for i := range n {
			s.add(t, topic, keyed(fmt.Sprint(topic, i), fmt.Sprint("k", i)))
		}
		rows := s.fetch(t, topic)
		s.bury(t, leases, true, rows[0])
		s.bury(t, leases, false, rows[1:]...)
	}
	want := []outbox.DeadTopic{{Name: "B", Rows: 2, Blocking: 1}, {Name: "a", Rows: 1, Blocking: 1}, {Name: "c", Rows: 3, Blocking: 1}}
	if got, err := s.Source.DeadTopics(ctx, 10); err != nil || !slices.Equal(got, want) {
		t.Errorf("dead rows by topic: got %v, %v; want %v", got, err, want)
	}
	if got, err := s.Source.DeadTopics(ctx, 2); err != nil || !slices.Equal(got, want[:2]) {
		t.Errorf("at most 2 topics: got %v, %v; want %v", got, err, want[:2])
	}
}

func testPublisher[Tx any](t *testing.T, s Subject[Tx]) {
	ctx := testContext(t)
	for _, commits := range []bool{false, true} {
		tx, commit, rollback, err := s.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var pub message.Publisher = outbox.NewPublisher(ctx, s.Writer, tx)
		if err := pub.Publish("orders", keyed("1", "k"), keyed("2", "k")); err != nil {
			t.Fatal(err)
		}
		if err := pub.Publish("orders", keyed("3", "")); err != nil {
			t.Fatal(err)
		}
		if err := pub.Close(); err != nil {
			t.Fatal(err)
		}
		end := rollback
		if commits {
			end = commit
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if !commits {
			wantUUIDs(t, "after the rollback", s.fetch(t, "orders"))
		}
	}
	wantUUIDs(t, "after the commit", s.fetch(t, "orders"), "1", "2", "3")
}

// clocked is a broker that notes the time of each message.
type clocked struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (c *clocked) Publish(_ string, msgs ...*message.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range msgs {
		c.at[m.UUID] = time.Now()
	}
	return nil
}

func (c *clocked) Close() error { return nil }

func (c *clocked) of(id string) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.at[id]
	return at, ok
}

// A delayed message is published at its time or after it, one of tomorrow is not, and those without a time do
// not wait for them.
func testDelayedRelay[Tx any](t *testing.T, s Subject[Tx]) {
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	at := time.Now().Add(time.Second)
	tx, commit, _, err := s.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for id, when := range map[string]time.Time{"soon": at, "tomorrow": at.Add(24 * time.Hour)} {
		if err := outbox.AddAt(ctx, s.Writer, tx, when, "orders", keyed(id, "k")); err != nil {
			t.Fatal(err)
		}
	}
	if err := outbox.Add(ctx, s.Writer, tx, "orders", keyed("now", "k")); err != nil {
		t.Fatal(err)
	}
	if err := commit(); err != nil {
		t.Fatal(err)
	}
	b := &clocked{at: map[string]time.Time{}}
	r, err := outbox.NewRelay(s.Source, b, outbox.RelayConfig{PollMin: time.Millisecond, PollMax: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	until(t, "the delayed message is published", func() bool { _, ok := b.of("soon"); return ok })
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	if got, _ := b.of("soon"); got.Before(at.Add(-clocks)) {
		t.Errorf("published %v before its time", at.Sub(got))
	}
	if _, ok := b.of("now"); !ok {
		t.Error("the message without a time was not published")
	}
	if at, ok := b.of("tomorrow"); ok {
		t.Errorf("tomorrow's message was published at %v", at)
	}
	if left, err := s.Source.Backlog(testContext(t), 10); err != nil || left != (outbox.Backlog{Delayed: 1}) {
		t.Errorf("left: got %+v, %v; want tomorrow's", left, err)
	}
}
