package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// tables of one pipeline. There are no unique indexes on what happens: what happens twice must be seen, not refused.
//
//	key     what a producer changes: its row's lock serialises the transactions of the key
//	made    the events
//	state   what the consumers know of a key: the last number, and how many effects there were
//	effect  the effects, each with the number that it found in state
//	dead    the dead letters, as their consumer got them
const tables = `
CREATE TABLE {s}.key (key text PRIMARY KEY, seq bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE {s}.made (key text NOT NULL, seq bigint NOT NULL, poison boolean NOT NULL, PRIMARY KEY (key, seq));
CREATE TABLE {s}.state (key text PRIMARY KEY, seq bigint NOT NULL, effects bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE {s}.effect (n bigint NOT NULL GENERATED ALWAYS AS IDENTITY, key text NOT NULL, seq bigint NOT NULL, prev bigint NOT NULL, process text NOT NULL);
CREATE INDEX ON {s}.effect (key, seq);
CREATE TABLE {s}.dead (n bigint NOT NULL GENERATED ALWAYS AS IDENTITY, key text NOT NULL, seq bigint NOT NULL, attempts int NOT NULL, error text NOT NULL);
CREATE INDEX ON {s}.dead (key, seq);
INSERT INTO {s}.key SELECT format('k%s', lpad(k::text, 3, '0')), 0 FROM generate_series(0, {keys} - 1) k;
INSERT INTO {s}.state SELECT key, 0, 0 FROM {s}.key`

// The clock of the leases, which can jump: for sessions whose search path begins with this schema, clock_timestamp() is this
// function. The controller's and the server's own sessions have the system's.
const (
	clockSchema = "chaos_clock"
	searchPath  = clockSchema + ", pg_catalog, public"
	clock       = `
CREATE SCHEMA chaos_clock;
CREATE TABLE chaos_clock.skew (ahead interval NOT NULL);
INSERT INTO chaos_clock.skew VALUES ('0');
CREATE FUNCTION chaos_clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT pg_catalog.clock_timestamp() + ahead FROM chaos_clock.skew'`
)

func skewClock(ctx context.Context, conn *pgx.Conn, by time.Duration) error {
	_, err := conn.Exec(ctx, "UPDATE "+clockSchema+".skew SET ahead = $1", by)
	return err
}

// prepareDatabase makes what all pipelines share. Times of commits are what effects are judged by.
func prepareDatabase(ctx context.Context, s *server) error {
	if err := execute(ctx, s.url, "ALTER SYSTEM SET track_commit_timestamp = on"); err != nil {
		return err
	}
	if err := errors.Join(s.stop(ctx), s.start(ctx, s.name)); err != nil {
		return err
	}
	return execute(ctx, s.url, strings.Split(clock, ";\n")...)
}

func execute(ctx context.Context, address string, statements ...string) (err error) {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// prepare makes a pipeline's tables, topics and consumers, without proxies.
func (s spec) prepare(ctx context.Context, pool *pgxpool.Pool) error {
	schema := s.schema()
	if _, err := pool.Exec(ctx, "CREATE SCHEMA "+schema); err != nil {
		return err
	}
	store, err := pgxstore.New(pool, pgxstore.WithSchema(schema))
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	all := strings.NewReplacer("{s}", schema, "{keys}", fmt.Sprint(keys)).Replace(tables)
	for statement := range strings.SplitSeq(all, ";\n") {
		if _, err := pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	broker, end, err := s.open(pool)
	if err != nil {
		return err
	}
	if r, ok := broker.(brokers.Registrar); ok {
		for topic, consumer := range map[string]string{s.topic(): s.effects(), s.topic() + poison.Suffix: s.deadLetters()} {
			if err := r.Register(ctx, topic, consumer); err != nil {
				return errors.Join(fmt.Errorf("register %s: %w", consumer, err), end())
			}
		}
	}
	return end()
}

// progress is how far a pipeline is.
type progress struct {
	Made, Effects, Dead int64
	Outbox              int64 // rows
	Missing             int64 // events without an outcome; only looked at in the end
}

// look reads the progress cheaply; settled says to count what is missing as well.
func look(ctx context.Context, q interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, schema string, settled bool,
) (p progress, err error) {
	missing := "0"
	if settled {
		missing = "SELECT count(*) FROM {s}.made m WHERE " + withoutOutcome
	}
	query := strings.ReplaceAll(`SELECT (SELECT coalesce(sum(seq), 0)::bigint FROM {s}.key), (SELECT coalesce(sum(effects), 0)::bigint FROM {s}.state),
		(SELECT count(*) FROM {s}.dead), (SELECT count(*) FROM {s}.headrace_outbox), (`+missing+`)`, "{s}", schema)
	err = q.QueryRow(ctx, query).Scan(&p.Made, &p.Effects, &p.Dead, &p.Outbox, &p.Missing)
	return p, err
}

const withoutOutcome = `NOT EXISTS (SELECT FROM {s}.effect e WHERE e.key = m.key AND e.seq = m.seq) AND NOT EXISTS (SELECT FROM {s}.dead d WHERE d.key = m.key AND d.seq = m.seq)`
