package postgres_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/internal/leak"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// newPool returns a pool on the server at url that ends with the test.
func newPool(tb testing.TB, url string, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		tb.Fatal(err)
	}
	config.MaxConns = 16
	for _, c := range change {
		c(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return pool
}

// newSchema returns the name of a schema with our tables, which ends with the test.
func newSchema(tb testing.TB, pool *pgxpool.Pool) string {
	tb.Helper()
	name := "broker_" + strings.ToLower(rand.Text()[:12])
	b, err := postgres.New(postgres.Config{Pool: pool, Schema: name})
	if err != nil {
		tb.Fatal(err)
	}
	if err := b.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), fmt.Sprintf("DROP SCHEMA %q CASCADE", name)); err != nil {
			tb.Error(err)
		}
	})
	return name
}

// short is a LeaseTTL for tests in which one runs out.
const short = 2 * time.Second

// fast makes config quick. Leases last for long, since a machine can be busy and a lease that runs out is a redelivery.
func fast(config postgres.Config) postgres.Config {
	config.LeaseTTL = time.Minute
	config.PollMin, config.PollMax = 5*time.Millisecond, 100*time.Millisecond
	config.NackDelay, config.MaxNackDelay = 2*time.Millisecond, 20*time.Millisecond
	return config
}

// open returns a broker that ends with the test.
func open(tb testing.TB, config postgres.Config) *postgres.Broker {
	tb.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	b, err := postgres.New(config)
	return adaptertest.Opened(tb, b, err)
}

// env is a database with our tables.
type env struct {
	testing.TB
	pool   *pgxpool.Pool
	schema string
}

func newEnv(tb testing.TB, change ...func(*pgxpool.Config)) *env {
	tb.Helper()
	pool := newPool(tb, testserver.Postgres(tb), change...)
	return &env{tb, pool, newSchema(tb, pool)}
}

func (e *env) config() postgres.Config {
	return fast(postgres.Config{Pool: e.pool, Schema: e.schema})
}

func (e *env) table(name string) string {
	return pgx.Identifier{e.schema, "headrace_broker_" + name}.Sanitize()
}

func (e *env) exec(query string, args ...any) {
	e.Helper()
	if _, err := e.pool.Exec(e.Context(), query, args...); err != nil {
		e.Fatalf("%s: %v", query, err)
	}
}

// number returns what a query of one number says.
func (e *env) number(query string, args ...any) int64 {
	e.Helper()
	var n int64
	if err := e.pool.QueryRow(e.Context(), query, args...).Scan(&n); err != nil {
		e.Fatalf("%s: %v", query, err)
	}
	return n
}

// rows is how many messages are in the table.
func (e *env) rows() int64 {
	e.Helper()
	return e.number("SELECT count(*) FROM " + e.table("message"))
}
