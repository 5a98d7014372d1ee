package pgxstore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/inbox"
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

// connections opens those of a Signal and keeps the ids of their server processes.
type connections struct {
	store *pgxstore.Store
	mu    sync.Mutex
	pids  []uint32
}

func (c *connections) open(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, c.store.Pool().Config().ConnConfig)
	if err == nil {
		c.mu.Lock()
		c.pids = append(c.pids, conn.PgConn().PID())
		c.mu.Unlock()
	}
	return conn, err
}

// take returns the ids since the last call.
func (c *connections) take() []uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	pids := c.pids
	c.pids = nil
	return pids
}

// NOTIFY within the business transaction would take a lock that serialises all commits of the database.
func TestO8BusinessTransactionDoesNotNotify(t *testing.T) {
	store, ctx := outboxStore(t), limited(t)
	opened := &connections{store: store}
	signal := store.OutboxSignal(pgxstore.SignalConfig{Connect: opened.open})
	var heard atomic.Int64
	runSignal(ctx, t, signal, func() { heard.Add(1) })
	waitFor(ctx, t, "the signal listens", func() bool { return heard.Load() == 1 })
	own := opened.take()

	// What the signal listens to, we do.
	var listen string
	if err := store.Pool().QueryRow(ctx, "SELECT query FROM pg_stat_activity WHERE pid = ANY ($1::int[]) AND query LIKE 'LISTEN %'", own).Scan(&listen); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(ctx, store.Pool().Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is to be kept
	if _, err := conn.Exec(ctx, listen); err != nil {
		t.Fatal(err)
	}

	commitRows(ctx, t, store, "t", "k", 0, 3)
	one, two := inbox.Claim{Consumer: "c", ID: "1"}, inbox.Claim{Consumer: "c", ID: "2"}
	if done, err := store.Once(ctx, one, func(ctx context.Context, tx pgx.Tx) error { // the row waits for the COMMIT
		return outbox.Add(ctx, store, tx, "t", outgoing("a"))
	}); !done || err != nil {
		t.Fatal(done, err)
	}
	if err := store.OnceGroup(ctx, []inbox.Claim{two}, func(ctx context.Context, tx pgx.Tx, _ []bool) error {
		return errors.Join(pgxstore.Queue(ctx, tx, "SELECT 1"), outbox.Add(ctx, store, tx, "t", outgoing("b")))
	}); err != nil {
		t.Fatal(err)
	}
	// Notifications come in the order of the commits: the signal's own is the first one.
	signal.Wake()
	n, err := conn.WaitForNotification(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if own = append(own, opened.take()...); !slices.Contains(own, n.PID) {
		t.Errorf("heard %q of process %d on %s; want nothing before the NOTIFY of the signal, of one of %d", n.Payload, n.PID, n.Channel, own)
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
	opened := &connections{store: store}
	cfg := pgxstore.SignalConfig{Every: time.Millisecond, Logger: slog.New(slog.DiscardHandler), Connect: opened.open}
	a, b := store.OutboxSignal(cfg), store.OutboxSignal(cfg)
	var heard atomic.Int64
	runSignal(ctx, t, a, nil)
	runSignal(ctx, t, b, func() { heard.Add(1) })
	hears := func(what string) {
		before := heard.Load()
		waitFor(ctx, t, what, func() bool { a.Wake(); _, n := b.Counts(); return heard.Load() > before+1 && n > 0 })
	}
	hears("a hint is heard")
	for _, pid := range opened.take() {
		if _, err := store.Pool().Exec(ctx, "SELECT pg_terminate_backend($1)", int32(pid)); err != nil {
			t.Fatal(err)
		}
	}
	hears("a hint is heard on new connections")
	if err := a.Run(ctx, nil); err == nil {
		t.Error("a second Run: got no error")
	}
}
