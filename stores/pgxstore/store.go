package pgxstore

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/internal/slots"
	"github.com/headrace-go/headrace/stores/schema"
)

// Store keeps claims, versions and effects in one database. It is safe for concurrent use.
type Store struct {
	pool   *pgxpool.Pool
	names  schema.Names
	sql    statements
	slots  slots.Slots
	txOpts pgx.TxOptions
}

var _ inbox.Store[pgx.Tx] = (*Store)(nil)

type config struct {
	schema      string
	concurrency *int
	txOpts      pgx.TxOptions
}

// Option changes a default of [New].
type Option func(*config)

// WithSchema puts the tables into a schema of that name. The default is the first schema of the
// connections' search path.
func WithSchema(name string) Option { return func(c *config) { c.schema = name } }

// WithMaxConcurrency bounds how many transactions of the store are open at once. The default, and the
// most, is one less than the pool's MaxConns, at least 1.
func WithMaxConcurrency(n int) Option { return func(c *config) { c.concurrency = &n } }

// WithTxOptions begins the transactions with these options. Under repeatable read and above, expect
// serialization errors; they are worth a retry.
func WithTxOptions(o pgx.TxOptions) Option { return func(c *config) { c.txOpts = o } }

// New returns a store on pool. It does no I/O; call Migrate or Check before the first use. The caller
// closes the pool, after the last transaction.
func New(pool *pgxpool.Pool, opts ...Option) (*Store, error) {
	if pool == nil {
		return nil, errors.New("pgxstore: pool is nil")
	}
	var c config
	for _, o := range opts {
		o(&c)
	}
	names, err := schema.NewNames(schema.Postgres, c.schema, "")
	if err != nil {
		return nil, fmt.Errorf("pgxstore: %w", err)
	}
	limit, err := slots.Limit(c.concurrency, int(pool.Config().MaxConns), 0)
	if err != nil {
		return nil, fmt.Errorf("pgxstore: %w", err)
	}
	return &Store{pool: pool, names: names, sql: newStatements(names), slots: slots.New(limit), txOpts: c.txOpts}, nil
}

// Pool returns the pool, for statements outside of the store's transactions.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// MaxConcurrency is how many transactions of this store can be open at once.
func (s *Store) MaxConcurrency() int { return s.slots.Len() }

// statements are the texts for one set of names.
type statements struct {
	claim   string // consumer, id; 1 row: claimed
	advance string // consumer, entity, version; 1 row: not older
	prune   string // before, limit
	outboxStatements
}

func newStatements(n schema.Names) statements {
	inbox, version := n.Table("inbox"), n.Table("version")
	return statements{
		claim: "INSERT INTO " + inbox + " (consumer, id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
		// ON CONFLICT DO UPDATE locks the row even where its WHERE is false.
		advance: "INSERT INTO " + version + " AS v (consumer, entity, version) VALUES ($1, $2, $3)" +
			" ON CONFLICT (consumer, entity) DO UPDATE SET version = excluded.version WHERE v.version <= excluded.version",
		prune: "DELETE FROM " + inbox + " WHERE ctid = ANY (ARRAY(SELECT ctid FROM " + inbox +
			" WHERE claimed_at < $1 ORDER BY claimed_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
		outboxStatements: newOutboxStatements(n),
	}
}
