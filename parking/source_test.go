package parking_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/stores/sqlite"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

func openStore(t testing.TB) *sqlstore.Store {
	t.Helper()
	store, err := sqlite.Open(filepath.Join(t.TempDir(), "x.db"), sqlite.WithSynchronous(sqlite.SynchronousNormal))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := store.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return store
}

// scripted is a ledger whose released keys are lists of names; what it does not script panics.
type scripted struct {
	parking.Ledger
	start time.Time

	mu      sync.Mutex
	keys    map[string][]string
	fail    int // so many statements fail
	log     []string
	skipped []string
	left    bool
}

var errAway = errors.New("the database is away")

func (s *scripted) note(format string, args ...any) error {
	s.log = append(s.log, fmt.Sprintf("%v ", time.Since(s.start))+fmt.Sprintf(format, args...))
	if s.fail > 0 {
		s.fail--
		return errAway
	}
	return nil
}

func (s *scripted) Lease(_ context.Context, _, _ string, _ time.Duration, limit int) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.note("lease"); err != nil {
		return nil, err
	}
	var list []string
	for key := range s.keys {
		if len(list) < limit {
			list = append(list, key)
		}
	}
	return list, nil
}

func (s *scripted) Next(_ context.Context, consumer, key, _ string, _ time.Duration) (parking.Message, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.note("next"); err != nil {
		return parking.Message{}, false, err
	}
	if len(s.keys[key]) == 0 {
		delete(s.keys, key)
		return parking.Message{}, false, nil
	}
	name := s.keys[key][0]
	return parking.Message{Consumer: consumer, Key: key, Seq: 1, ID: name, Record: poison.Record{Version: 1, UUID: name, Topic: "orders"}}, true, nil
}

func (s *scripted) Skip(_ context.Context, _, key string, _ int64, why parking.Reason) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skipped = append(s.skipped, s.keys[key][0])
	s.keys[key] = s.keys[key][1:]
	return true, why.Validate()
}

func (s *scripted) Count(context.Context, string) (parking.Count, error) {
	return parking.Count{Keys: 3}, nil
}
func (s *scripted) PruneAudit(context.Context, time.Time, int) (int, error) { return 0, nil }

func (s *scripted) Leave(context.Context, string, string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = true
	return nil
}

func (s *scripted) source(t *testing.T, p parking.Policy) (*parking.Source, <-chan *message.Message) {
	t.Helper()
	s.start = time.Now()
	src, err := parking.NewSource(parking.SourceConfig{Consumer: "billing", Ledger: s, Policy: p, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	in, err := src.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	return src, in
}

func closeSource(t *testing.T, src *parking.Source, in <-chan *message.Message) {
	t.Helper()
	for range 2 {
		if err := src.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if _, open := <-in; open {
		t.Error("a message after Close")
	}
	if _, err := src.Subscribe(t.Context(), "orders"); err == nil {
		t.Error("Subscribe after Close: no error")
	}
}

// The next message of a key was yielded before the ack of the last one.
func TestSourceYieldsOneMessageOfAKeyAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{keys: map[string][]string{"a": {"a1", "a2"}}}
		src, in := s.source(t, parking.Policy{})
		first := <-in
		synctest.Wait()
		select {
		case m := <-in:
			t.Errorf("message %s before the ack of %s", m.UUID, first.UUID)
		case <-time.After(time.Hour):
		}
		d := brokers.DeliveryOf(first.Context())
		if d == nil || d.Release == nil || !strings.HasPrefix(d.Topic, "orders") || d.Topic == "orders" || !parking.IsDrained(first.Context()) || parking.IsDrained(t.Context()) {
			t.Errorf("delivery %+v; want one that can be released, in a lane of its own", d)
		}
		first.Ack() // without an effect: as a message of a type without a handler
		if second := <-in; second.UUID != "a2" {
			t.Errorf("got %s, want a2", second.UUID)
		}
		if len(s.skipped) != 1 || s.skipped[0] != "a1" {
			t.Errorf("removed %q, want a1", s.skipped)
		}
		closeSource(t, src, in)
		if !s.left {
			t.Error("the leases were not given up")
		}
	})
}

// A released message was nacked and came again in a hot loop.
func TestS5SourceBacksOffAfterANackAndARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{keys: map[string][]string{"a": {"a1"}}}
		src, in := s.source(t, parking.Policy{HoldDelay: time.Second, MaxHoldDelay: 3 * time.Second})
		var at []time.Duration
		for i := range 4 {
			m := <-in
			at = append(at, time.Since(s.start).Round(time.Second))
			if i%2 == 0 {
				m.Nack()
			} else {
				release := brokers.DeliveryOf(m.Context()).Release
				release()
				release()
			}
		}
		if want := []time.Duration{0, time.Second, 3 * time.Second, 6 * time.Second}; fmt.Sprint(at) != fmt.Sprint(want) {
			t.Errorf("yielded at %v, want %v", at, want)
		}
		closeSource(t, src, in)
	})
}

func TestSourceBacksOffWhileTheDatabaseIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{keys: map[string][]string{"a": {"a1"}}, fail: 8}
		src, in := s.source(t, parking.Policy{Poll: time.Second})
		m := <-in
		if got := time.Since(s.start); got < time.Minute || len(s.log) > 12 {
			t.Errorf("message %s after %v and %d statements; want a backoff up to 30 s: %q", m.UUID, got, len(s.log), s.log)
		}
		closeSource(t, src, in)
	})
}

func TestSourceLooksAtOnceWhenItIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{keys: map[string][]string{}}
		src, in := s.source(t, parking.Policy{Poll: time.Hour})
		if _, ok := src.Count(); ok {
			t.Error("a count before the first poll")
		}
		time.Sleep(time.Minute)
		if n, ok := src.Count(); !ok || n.Keys != 3 {
			t.Errorf("count %+v, %t; want that of the ledger", n, ok)
		}
		s.mu.Lock()
		s.keys["a"] = []string{"a1"}
		s.mu.Unlock()
		src.Wake()
		src.Wake()
		<-in
		if got := time.Since(s.start); got != time.Minute {
			t.Errorf("yielded after %v, want 1m0s", got)
		}
		closeSource(t, src, in)
	})
}

func TestSourceDrainsABoundedNumberOfKeysAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{keys: map[string][]string{}}
		for i := range 10 {
			s.keys[fmt.Sprint(i)] = []string{fmt.Sprint(i)}
		}
		src, in := s.source(t, parking.Policy{Concurrency: 3})
		held := []*message.Message{<-in, <-in, <-in}
		synctest.Wait()
		select {
		case <-in:
			t.Error("a fourth key, want 3 at once")
		case <-time.After(time.Hour):
		}
		held[0].Ack()
		<-in
		closeSource(t, src, in)
	})
}
