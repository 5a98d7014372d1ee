package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/outbox"
)

var _ outbox.Signal = (*Signal)(nil)

// SignalConfig sets up a [Signal]. The zero value of each field means its default.
type SignalConfig struct {
	// Every is the least time between two NOTIFYs of this process. Default 10 ms.
	Every time.Duration

	// Connect opens a connection; there are two at most, and the Signal closes them. Default: the settings of
	// the store's pool, outside of the pool. A pool that goes through a pooler of transactions (PgBouncer, say)
	// needs a Connect that goes around it: LISTEN belongs to a session.
	Connect func(ctx context.Context) (*pgx.Conn, error)

	// Logger gets what changes: the hints fail, they work again. Default slog.Default().
	Logger *slog.Logger
}

const (
	signalTimeout = 5 * time.Second  // of each call
	signalProbe   = 30 * time.Second // a silent connection is asked this often whether it lives
	signalRetry   = 10 * time.Second // the longest wait after a failure
)

// Signal is an outbox.Signal by NOTIFY and LISTEN, each on a connection of its own: business transactions
// never NOTIFY. Where the notification queue of the server is full, it is the Signal's statement that fails.
// It is safe for concurrent use.
type Signal struct {
	cfg     SignalConfig
	channel string
	wake    chan struct{}
	running atomic.Bool
	self    atomic.Uint32 // the server's process of our NOTIFYs
	sent    atomic.Uint64
	heard   atomic.Uint64
}

// OutboxSignal returns a signal between the processes that use this store's outbox, for
// outbox.RelayConfig, or to be run by itself in a process without a relay. A process needs one.
func (s *Store) OutboxSignal(cfg SignalConfig) *Signal {
	if cfg.Every <= 0 {
		cfg.Every = 10 * time.Millisecond
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Connect == nil {
		cfg.Connect = func(ctx context.Context) (*pgx.Conn, error) {
			c := s.pool.Config()
			if c.BeforeConnect != nil {
				if err := c.BeforeConnect(ctx, c.ConnConfig); err != nil {
					return nil, err
				}
			}
			return pgx.ConnectConfig(ctx, c.ConnConfig)
		}
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.names.Table("outbox"))) // never fails
	return &Signal{cfg: cfg, channel: fmt.Sprintf("headrace_outbox_%016x", h.Sum64()), wake: make(chan struct{}, 1)}
}

// Wake implements [outbox.Signal].
func (s *Signal) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Counts returns how many NOTIFYs were sent and how many of other processes were heard.
func (s *Signal) Counts() (sent, heard uint64) { return s.sent.Load(), s.heard.Load() }

// Run implements [outbox.Signal]. Its error says that it runs already.
func (s *Signal) Run(ctx context.Context, heard func()) error {
	if !s.running.CompareAndSwap(false, true) {
		return errors.New("pgxstore: the signal runs already")
	}
	defer s.running.Store(false)
	var both sync.WaitGroup
	both.Go(func() { s.keep(ctx, "NOTIFY", s.notify) })
	if heard != nil {
		both.Go(func() {
			s.keep(ctx, "LISTEN", func(ctx context.Context, conn *pgx.Conn, well func()) error {
				return s.listen(ctx, conn, well, heard)
			})
		})
	}
	both.Wait()
	return nil
}

// keep runs f on a connection, and on another one after it has failed, until ctx ends. f calls well when it
// has done its work.
func (s *Signal) keep(ctx context.Context, what string, f func(ctx context.Context, conn *pgx.Conn, well func()) error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.MaxElapsedTime = s.cfg.Every, signalRetry, 0
	wait.Reset()
	failing := false
	well := func() {
		wait.Reset()
		if failing {
			failing = false
			s.cfg.Logger.InfoContext(ctx, "outbox: the hints between processes work again", "statement", what)
		}
	}
	for ctx.Err() == nil {
		err := s.once(ctx, func(conn *pgx.Conn) error { return f(ctx, conn, well) })
		if ctx.Err() != nil {
			return
		}
		if !failing {
			failing = true
			s.cfg.Logger.WarnContext(ctx, "outbox: no hints between processes; rows are found by the poll", "statement", what, "error", err)
		}
		timer := time.NewTimer(wait.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

func (s *Signal) once(ctx context.Context, f func(*pgx.Conn) error) error {
	limited, cancel := context.WithTimeout(ctx, signalTimeout)
	conn, err := s.cfg.Connect(limited)
	cancel()
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	err = f(conn)
	limited, cancel = context.WithTimeout(context.WithoutCancel(ctx), signalTimeout)
	defer cancel()
	err = errors.Join(err, conn.Close(limited))
	select {
	case <-conn.PgConn().CleanupDone(): // a wait that was cancelled is ended by a goroutine of pgx's
	case <-limited.Done():
	}
	return err
}

// notify sends a NOTIFY for the hints that came meanwhile, and no other for a while.
func (s *Signal) notify(ctx context.Context, conn *pgx.Conn, well func()) error {
	s.self.Store(conn.PgConn().PID())
	pause := time.NewTicker(s.cfg.Every)
	defer pause.Stop()
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil
		}
		if err := s.exec(ctx, conn, "NOTIFY "+s.channel); err != nil {
			return err
		}
		s.sent.Add(1)
		well()
		pause.Reset(s.cfg.Every)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// listen calls heard for what other processes send. Between two notifications it does nothing else, so that
// the server's queue is drained at once.
func (s *Signal) listen(ctx context.Context, conn *pgx.Conn, well, heard func()) error {
	if err := s.exec(ctx, conn, "LISTEN "+s.channel); err != nil {
		return err
	}
	well()
	heard() // what was sent before
	for {
		limited, cancel := context.WithTimeout(ctx, signalProbe)
		n, err := conn.WaitForNotification(limited)
		silent := limited.Err() != nil
		cancel()
		switch {
		case err == nil:
			if n.PID != s.self.Load() {
				s.heard.Add(1)
				heard()
			}
		case ctx.Err() != nil:
			return nil //nolint:nilerr // err only says that ctx has ended
		case silent && !conn.IsClosed():
			if err := s.exec(ctx, conn, "SELECT 1"); err != nil {
				return err
			}
		default:
			return fmt.Errorf("wait for a notification: %w", err)
		}
	}
}

func (s *Signal) exec(ctx context.Context, conn *pgx.Conn, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	if _, err := conn.PgConn().Exec(ctx, statement).ReadAll(); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}
