package pgxstore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// runSignal runs s until the test ends.
func runSignal(ctx context.Context, t *testing.T, s *pgxstore.Signal, heard func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, heard) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("signal: %v", err)
		}
	})
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// A process without a relay commits; the relay of another process polls once an hour, and publishes at once.
func TestO8SignalWakesTheRelayOfAnotherProcess(t *testing.T) {
	store, ctx := outboxStore(t), limited(t)
	b := newFirsts()
	startRelay(ctx, t, store.Outbox(), b, outbox.RelayConfig{PollMin: time.Hour, PollMax: time.Hour, Signal: store.OutboxSignal(pgxstore.SignalConfig{})})
	here := outboxStoreAt(t, store, func(*pgxpool.Config) {}).OutboxSignal(pgxstore.SignalConfig{})
	runSignal(ctx, t, here, nil)
	for n := range 3 {
		commitRows(ctx, t, store, "t", "k", n, 1)
		waitFor(ctx, t, "the row is published", func() bool {
			here.Wake() // again and again: the relay may just begin to listen
			return b.count() == n+1
		})
	}
	if sent, heard := here.Counts(); sent == 0 || heard != 0 {
		t.Errorf("counts: sent %d, heard %d; want some and none", sent, heard)
	}
}

// Ten thousand commits within the interval are two NOTIFYs at most, heard by the other process and not by our own.
func TestO8HintsAreCoalesced(t *testing.T) {
	store, ctx := outboxStore(t), limited(t)
	a := store.OutboxSignal(pgxstore.SignalConfig{Every: time.Hour})
	b := store.OutboxSignal(pgxstore.SignalConfig{Every: time.Hour})
	var heardA, heardB atomic.Int64
	runSignal(ctx, t, a, func() { heardA.Add(1) })
	runSignal(ctx, t, b, func() { heardB.Add(1) })
	waitFor(ctx, t, "both listen", func() bool { return heardA.Load() == 1 && heardB.Load() == 1 })
	for range 10_000 {
		a.Wake()
	}
	waitFor(ctx, t, "the other process hears", func() bool { return heardB.Load() == 2 })
	if sent, _ := a.Counts(); sent != 1 {
		t.Errorf("%d NOTIFYs were sent within the interval, want 1", sent)
	}
	// The other's NOTIFY comes to us behind our own.
	b.Wake()
	waitFor(ctx, t, "we hear the other process", func() bool { return heardA.Load() >= 2 })
	if n := heardA.Load(); n != 2 {
		t.Errorf("heard %d hints, want the one at the begin and the other process's: our own is no news", n)
	}
}

// sentences keeps every statement of a pool.
type sentences struct {
	mu   sync.Mutex
	list []string
}

func (s *sentences) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, data.SQL)
	return ctx
}

func (*sentences) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// NOTIFY within the business transaction would take a lock that serialises all commits of the database.
func TestO8BusinessTransactionDoesNotNotify(t *testing.T) {
	store, ctx := outboxStore(t), limited(t)
	said := &sentences{}
	traced := outboxStoreAt(t, store, func(c *pgxpool.Config) { c.ConnConfig.Tracer = said })
	commitRows(ctx, t, traced, "t", "k", 0, 3)
	said.mu.Lock()
	defer said.mu.Unlock()
	if len(said.list) < 3 {
		t.Fatalf("statements: %q; want BEGIN, INSERT and COMMIT", said.list)
	}
	for _, s := range said.list {
		if strings.Contains(strings.ToLower(s), "notify") {
			t.Errorf("the transaction sends %q", s)
		}
	}
}

// No connection for the hints is to be had. Nothing waits for them, rows are found by the poll, and the log tells once.
func TestSignalThatFailsCostsOnlyLatency(t *testing.T) {
	store, ctx := outboxStore(t), limited(t)
	var log bytes.Buffer
	var mu sync.Mutex
	var tries atomic.Int64
	broken := store.OutboxSignal(pgxstore.SignalConfig{
		Every:   time.Millisecond,
		Connect: func(context.Context) (*pgx.Conn, error) { tries.Add(1); return nil, errors.New("too many connections") },
		Logger:  slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, nil)),
	})
	b := newFirsts()
	r := startRelay(ctx, t, store.Outbox(), b, outbox.RelayConfig{PollMin: time.Millisecond, PollMax: 20 * time.Millisecond, Signal: broken})
	commitRows(ctx, t, store, "t", "k", 0, 10)
	for range 1_000 {
		r.Wake()
		broken.Wake()
	}
	waitFor(ctx, t, "the rows are published by the poll", func() bool { return b.count() == 10 })
	waitFor(ctx, t, "the connections are tried again", func() bool { return tries.Load() >= 6 })
	mu.Lock()
	defer mu.Unlock()
	if n := strings.Count(log.String(), "too many connections"); n != 2 {
		t.Errorf("log: %d lines, want one for NOTIFY and one for LISTEN:\n%s", n, log.String())
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

// The server ends both connections. They are made again, and the hints go on.
func TestSignalConnectsAgain(t *testing.T) {
	store, ctx := outboxStore(t), limited(t)
	var mu sync.Mutex
	var pids []uint32
	cfg := pgxstore.SignalConfig{Every: time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
	cfg.Connect = func(ctx context.Context) (*pgx.Conn, error) {
		conn, err := pgx.ConnectConfig(ctx, store.Pool().Config().ConnConfig)
		if err == nil {
			mu.Lock()
			pids = append(pids, conn.PgConn().PID())
			mu.Unlock()
		}
		return conn, err
	}
	a, b := store.OutboxSignal(cfg), store.OutboxSignal(cfg)
	var heard atomic.Int64
	runSignal(ctx, t, a, nil)
	runSignal(ctx, t, b, func() { heard.Add(1) })
	hears := func(what string) {
		before := heard.Load()
		waitFor(ctx, t, what, func() bool { a.Wake(); _, n := b.Counts(); return heard.Load() > before+1 && n > 0 })
	}
	hears("a hint is heard")
	mu.Lock()
	killed := pids
	pids = nil
	mu.Unlock()
	for _, pid := range killed {
		if _, err := store.Pool().Exec(ctx, "SELECT pg_terminate_backend($1)", int32(pid)); err != nil {
			t.Fatal(err)
		}
	}
	hears("a hint is heard on new connections")
	if err := a.Run(ctx, nil); err == nil {
		t.Error("a second Run: got no error")
	}
}
