package pgxstore

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

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
	traced bool

	duplicates atomic.Int64
	pruned     pruned
}

var (
	_ inbox.GroupStore[pgx.Tx] = (*Store)(nil)
	_ inbox.Observed           = (*Store)(nil)
)

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
	return &Store{
		pool: pool, names: names, sql: newStatements(names), slots: slots.New(limit), txOpts: c.txOpts,
		traced: pool.Config().ConnConfig.Tracer != nil,
	}, nil
}

// Pool returns the pool, for statements outside of the store's transactions.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// MaxConcurrency is how many transactions of this store can be open at once.
func (s *Store) MaxConcurrency() int { return s.slots.Len() }

// statements are the texts for one set of names.
type statements struct {
	claim     string // consumer, id; 1 row: claimed
	claimMany string // consumers, ids; as many rows as were claimed
	claimed   string // consumers, ids; those that this transaction has claimed, in the order of bytes
	advance   string // consumer, entity, version; 1 row: not older
	prune     string // from, before, limit; how many, and the latest time among them
	size      string // about how many claims
	oldest    string // the age of the oldest in seconds, or no row
	outboxStatements
}

func newStatements(n schema.Names) statements {
	inbox, version := n.Table("inbox"), n.Table("version")
	return statements{
		claim: "INSERT INTO " + inbox + " (consumer, id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
		// Without ORDER BY rows are inserted, and so locked, in the order of the arrays.
		claimMany: "INSERT INTO " + inbox + " (consumer, id) SELECT * FROM unnest($1::text[], $2::text[]) ON CONFLICT DO NOTHING",
		// Before a savepoint all that the transaction inserts has its own number.
		claimed: "SELECT consumer, id FROM " + inbox + " WHERE (consumer, id) IN (SELECT * FROM unnest($1::text[], $2::text[]))" +
			" AND xmin = pg_current_xact_id()::xid ORDER BY consumer, id",
		// ON CONFLICT DO UPDATE locks the row even where its WHERE is false.
		advance: "INSERT INTO " + version + " AS v (consumer, entity, version) VALUES ($1, $2, $3)" +
			" ON CONFLICT (consumer, entity) DO UPDATE SET version = excluded.version WHERE v.version <= excluded.version",
		prune: "WITH gone AS (DELETE FROM " + inbox + " WHERE ctid = ANY (ARRAY(SELECT ctid FROM " + inbox +
			" WHERE claimed_at >= $1 AND claimed_at < $2 ORDER BY claimed_at LIMIT $3 FOR UPDATE SKIP LOCKED)) RETURNING claimed_at)" +
			" SELECT count(*), coalesce(max(claimed_at), $1) FROM gone",
		// -1: never analysed. A small table that never was is counted by the statistics of the server.
		size:             "SELECT greatest(c.reltuples, pg_stat_get_live_tuples(c.oid))::bigint FROM pg_class c WHERE c.oid = to_regclass('" + strings.ReplaceAll(inbox, "'", "''") + "')",
		oldest:           "SELECT extract(epoch FROM clock_timestamp() - claimed_at)::float8 FROM " + inbox + " ORDER BY claimed_at LIMIT 1",
		outboxStatements: newOutboxStatements(n),
	}
}
