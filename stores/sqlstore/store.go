package sqlstore

import (
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/internal/outboxsql"
	"github.com/headrace-go/headrace/stores/internal/slots"
	"github.com/headrace-go/headrace/stores/schema"
)

// defaultConcurrency bounds the transactions on a *sql.DB whose connections are not limited.
const defaultConcurrency = 32

// Store keeps claims, versions and effects in one database. It is safe for concurrent use.
type Store struct {
	db     *sql.DB
	names  schema.Names
	sql    statements
	outbox *outboxsql.Source
	slots  slots.Slots
	txOpts *sql.TxOptions
	owned  bool

	duplicates atomic.Int64
}

var (
	_ inbox.GroupStore[*sql.Tx] = (*Store)(nil)
	_ inbox.Observed            = (*Store)(nil)
)

type config struct {
	schema, prefix string
	concurrency    *int
	isolation      sql.IsolationLevel
	owned          bool
}

// Option changes a default of [New].
type Option func(*config)

// WithSchema puts the tables into a Postgres schema of that name. The default is the first schema of
// the connections' search path.
func WithSchema(name string) Option { return func(c *config) { c.schema = name } }

// WithTablePrefix begins the tables' names with prefix instead of "headrace_".
func WithTablePrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithMaxConcurrency bounds how many transactions of the store are open at once. The default is one
// less than the pool's limit, at least 1; it is 32 when the pool has no limit, and 1 on SQLite. More
// than the default is refused unless the pool has no limit.
func WithMaxConcurrency(n int) Option { return func(c *config) { c.concurrency = &n } }

// WithIsolation runs the transactions at that level instead of the database's default. Under
// repeatable read and above, expect serialization errors; they are worth a retry. On MySQL read uncommitted
// is refused.
func WithIsolation(level sql.IsolationLevel) Option { return func(c *config) { c.isolation = level } }

// WithOwnership makes [Store.Close] close the *sql.DB.
func WithOwnership() Option { return func(c *config) { c.owned = true } }

// New returns a store on db. It does no I/O; call Migrate or Check before the first use. The pool's
// limit (db.SetMaxOpenConns) is read now, so set it first. The caller closes db.
func New(db *sql.DB, dialect schema.Dialect, opts ...Option) (*Store, error) {
	if db == nil {
		return nil, errors.New("sqlstore: db is nil")
	}
	var c config
	for _, o := range opts {
		o(&c)
	}
	names, err := schema.NewNames(dialect, c.schema, c.prefix)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: %w", err)
	}
	pool := db.Stats().MaxOpenConnections
	if dialect == schema.SQLite {
		pool = 1 // one writer at a time, whatever the number of connections
	}
	limit, err := slots.Limit(c.concurrency, pool, defaultConcurrency)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: %w", err)
	}
	if dialect == schema.MySQL && c.isolation == sql.LevelReadUncommitted {
		return nil, fmt.Errorf("sqlstore: isolation %v: want read committed or above", c.isolation)
	}
	s := &Store{db: db, names: names, sql: newStatements(names), slots: slots.New(limit), owned: c.owned}
	s.outbox = s.outboxSource()
	if c.isolation != sql.LevelDefault {
		s.txOpts = &sql.TxOptions{Isolation: c.isolation}
	}
	return s, nil
}

// DB returns the database, for statements outside of the store's transactions. With a single
// connection it waits for them: inside a handler use the transaction only.
func (s *Store) DB() *sql.DB { return s.db }

// MaxConcurrency is how many transactions of this store can be open at once.
func (s *Store) MaxConcurrency() int { return s.slots.Len() }

// Close closes the database if the store owns it, as one of stores/sqlite does, and does nothing
// otherwise. Transactions that run then fail.
func (s *Store) Close() error {
	if !s.owned {
		return nil
	}
	return s.db.Close()
}
