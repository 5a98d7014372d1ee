package file_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headrace-go/headrace/headracetest/ledgersuite"
	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/ledger/file"
)

func open(t *testing.T, dir string) *file.Store {
	t.Helper()
	store, err := file.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func TestLedger(t *testing.T) {
	ledgersuite.Run(t, open(t, t.TempDir()))
}

// turns answers each call by another of its stores.
type turns struct {
	stores []*file.Store
	next   int
}

func (s *turns) one() *file.Store {
	s.next++
	return s.stores[s.next%len(s.stores)]
}

func (s *turns) Check(ctx context.Context) error { return s.one().Check(ctx) }
func (s *turns) Begin(ctx context.Context, r ledger.Run, t ledger.Terms) (ledger.Standing, error) {
	return s.one().Begin(ctx, r, t)
}

func (s *turns) Beat(ctx context.Context, r ledger.Run, t ledger.Terms) (ledger.Standing, error) {
	return s.one().Beat(ctx, r, t)
}

func (s *turns) Stopping(ctx context.Context, r ledger.Run) error { return s.one().Stopping(ctx, r) }
func (s *turns) End(ctx context.Context, r ledger.Run) error      { return s.one().End(ctx, r) }
func (s *turns) Record(ctx context.Context, r ledger.Run, done, begun []ledger.Key) ([]ledger.Suspect, error) {
	return s.one().Record(ctx, r, done, begun)
}

func (s *turns) Alone(ctx context.Context, r ledger.Run, k ledger.Key, force bool) (ledger.Suspect, error) {
	return s.one().Alone(ctx, r, k, force)
}

func (s *turns) Clear(ctx context.Context, r ledger.Run, k ledger.Key) error {
	return s.one().Clear(ctx, r, k)
}

func (s *turns) Suspects(ctx context.Context, service string, retention time.Duration, limit int) ([]ledger.Key, error) {
	return s.one().Suspects(ctx, service, retention, limit)
}

// Two processes share a directory: what one of them writes the other one reads.
func TestProcessesShareADirectory(t *testing.T) {
	dir := t.TempDir()
	s := &turns{stores: []*file.Store{open(t, dir), open(t, dir), open(t, dir)}}
	ctx, terms := t.Context(), ledger.Terms{TTL: time.Hour, Retention: time.Hour, MaxSuspects: 100}
	run := func(n int) ledger.Run { return ledger.Run{Service: "s", ID: fmt.Sprint("r", n), Instance: "host"} }
	key := ledger.Key{Consumer: "c", ID: "killer"}
	for n := range 4 {
		standing, err := s.Begin(ctx, run(n), terms)
		if err != nil || standing.Alarms != int64(n) {
			t.Fatalf("run %d: got %+v, %v; want %d alarms", n, standing, err, n)
		}
		suspect, err := s.Alone(ctx, run(n), key, false)
		if err != nil || len(suspect.Starts) != min(n, 2) {
			t.Fatalf("run %d: got %+v, %v; want %d starts", n, suspect, err, min(n, 2))
		}
	}
}

// The process died while it wrote a line: the half of it is no call, and does not stop the next process.
func TestTornLineIsNoCall(t *testing.T) {
	dir := t.TempDir()
	ctx, terms := t.Context(), ledger.Terms{TTL: time.Hour, Retention: time.Hour, MaxSuspects: 100}
	run := ledger.Run{Service: "s", ID: "a", Instance: "host"}
	first, second := open(t, dir), open(t, dir)
	if _, err := first.Begin(ctx, run, terms); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "ledger.jsonl")
	journal, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := journal.WriteString(`{"v":1,"at":"2026-01-01T00:00:00Z","op":"rec`); err != nil {
		t.Fatal(err)
	}
	if err := journal.Close(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*file.Store{second, first} {
		if _, err := s.Record(ctx, run, nil, []ledger.Key{{Consumer: "c", ID: "m"}}); err != nil {
			t.Errorf("record behind the torn line: %v", err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), "op\":\"rec{") || strings.Count(string(text), "\n") != 3 {
		t.Errorf("journal: %v\n%s\nwant three whole lines", err, text)
	}
}

// The journal grew with each heartbeat until the disk was full.
func TestJournalIsBounded(t *testing.T) {
	dir := t.TempDir()
	ctx, terms := t.Context(), ledger.Terms{TTL: time.Hour, Retention: time.Hour, MaxSuspects: 100}
	run := ledger.Run{Service: "s", ID: "a", Instance: "host"}
	store, other := open(t, dir), open(t, dir)
	if _, err := store.Begin(ctx, run, terms); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Record(ctx, run, nil, []ledger.Key{{Consumer: "c", ID: "m"}}); err != nil {
		t.Fatal(err)
	}
	largest := int64(0)
	for range 8000 {
		if _, err := store.Beat(ctx, run, terms); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(dir, "ledger.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		largest = max(largest, info.Size())
	}
	if largest > 1<<20 {
		t.Errorf("the journal grew to %d bytes, want at most %d", largest, 1<<20)
	}
	standing, err := other.Begin(ctx, ledger.Run{Service: "s", ID: "b", Instance: "host"}, terms)
	if err != nil || standing.Alarms != 1 {
		t.Errorf("another process, afterwards: got %+v, %v; want one alarm", standing, err)
	}
	if got, err := other.Suspects(ctx, "s", terms.Retention, 10); err != nil || len(got) != 1 {
		t.Errorf("suspects: got %v, %v; want m", got, err)
	}
}

func TestBadDirectoryIsNotUsable(t *testing.T) {
	if _, err := file.Open(""); err == nil || !strings.Contains(err.Error(), `""`) {
		t.Errorf("Open of no directory: got %v, want an error that names it", err)
	}
	path := filepath.Join(t.TempDir(), "a file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Open(path); err == nil {
		t.Error("Open of a file: got no error")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ledger.jsonl"), []byte("{\"v\":99}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(t, dir).Check(t.Context()); !errors.Is(err, ledger.ErrNotUsable) || !strings.Contains(err.Error(), "99") {
		t.Errorf("a journal of a newer program: got %v, want not usable, with its version", err)
	}
}

func Example() {
	dir, err := os.MkdirTemp("", "ledger")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	store, err := file.Open(dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := ledger.New(ledger.Config{Service: "billing", Store: store})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	fmt.Println(l.Begin(ctx))
	fmt.Println(l.Stats().State)
	fmt.Println(l.End(ctx), store.Close())
	// Output:
	// <nil>
	// probing
	// <nil> <nil>
}
