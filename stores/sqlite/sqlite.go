// Package sqlite opens a SQLite file as a store, with modernc.org/sqlite, which needs no cgo. It owns
// the settings of the connection; the store is stores/sqlstore.
//
// SQLite has one writer at a time. So the store has one connection, and transactions queue in the process
// instead of failing on each other's locks.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/headrace-go/headrace/stores/schema"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

// Synchronous is how much SQLite waits for the disk.
type Synchronous string

const (
	// SynchronousFull syncs at every commit: a committed effect survives a loss of power. The default.
	SynchronousFull Synchronous = "FULL"
	// SynchronousNormal syncs at checkpoints: a loss of power can take back the last commits, claim and
	// effect together, after their messages were acked. A crash of the process takes nothing.
	SynchronousNormal Synchronous = "NORMAL"
)

// DefaultBusyTimeout is how long a statement waits for another process's lock.
const DefaultBusyTimeout = 10 * time.Second

type config struct {
	prefix      string
	synchronous Synchronous
	busyTimeout time.Duration
}

// Option changes a default of [Open].
type Option func(*config)

// WithSynchronous sets how much a commit waits for the disk; the default is [SynchronousFull].
func WithSynchronous(s Synchronous) Option { return func(c *config) { c.synchronous = s } }

// WithBusyTimeout sets how long a statement waits for another process's lock, from 1 ms;
// the default is [DefaultBusyTimeout].
func WithBusyTimeout(d time.Duration) Option { return func(c *config) { c.busyTimeout = d } }

// WithTablePrefix begins the tables' names with prefix instead of "headrace_".
func WithTablePrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// Open opens or creates the file at path in WAL mode and returns a store that owns it: close the store.
// Call Migrate before the first use. Handlers use their transaction only: the store's DB has the same
// single connection and waits for them.
//
// path is a file's path, not a URI, and not on a network file system. ":memory:" is refused, since
// nothing would survive; tests use a file in a temporary directory, or stores/testonly.
func Open(path string, opts ...Option) (*sqlstore.Store, error) {
	c := config{synchronous: SynchronousFull, busyTimeout: DefaultBusyTimeout}
	for _, o := range opts {
		o(&c)
	}
	if path == "" || strings.HasPrefix(path, ":memory:") || strings.HasPrefix(path, "file:") {
		return nil, fmt.Errorf("sqlite: path %q: want the path of a file", path)
	}
	if c.synchronous != SynchronousFull && c.synchronous != SynchronousNormal {
		return nil, fmt.Errorf("sqlite: synchronous %q: want %q or %q", c.synchronous, SynchronousFull, SynchronousNormal)
	}
	if c.busyTimeout < time.Millisecond {
		return nil, fmt.Errorf("sqlite: busy timeout %s: want at least 1ms", c.busyTimeout)
	}
	db, err := sql.Open("sqlite", dsn(path, c))
	if err != nil {
		return nil, fmt.Errorf("sqlite: open %s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	db.SetConnMaxLifetime(0)
	db.SetConnMaxIdleTime(0)
	store, err := sqlstore.New(db, schema.SQLite, sqlstore.WithTablePrefix(c.prefix), sqlstore.WithOwnership())
	if err == nil {
		if err = db.PingContext(context.Background()); err == nil {
			return store, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("sqlite: open %s: %w", path, err), db.Close())
}

func dsn(path string, c config) string {
	q := url.Values{}
	// A transaction that begins as a reader and then writes fails at once when another process wrote in between.
	q.Set("_txlock", "immediate")
	q.Set("_busy_timeout", fmt.Sprint(c.busyTimeout.Milliseconds()))
	q.Set("_journal_mode", "WAL")
	q.Set("_synchronous", string(c.synchronous))
	q.Set("_foreign_keys", "on")
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String()
}
