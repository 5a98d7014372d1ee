package crash

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// The effects have no unique index: a doubled one must be seen, not refused. n is the order of the effects: a
// sequence gives it while the effect is made.
const tables = `
CREATE TABLE crash_key (key text PRIMARY KEY, seq bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE crash_made (key text NOT NULL, seq bigint NOT NULL, PRIMARY KEY (key, seq));
CREATE TABLE crash_effect (
	n       bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
	id      text   NOT NULL,
	key     text   NOT NULL,
	seq     bigint NOT NULL,
	process text   NOT NULL
);`

func prepare(ctx context.Context, pool *pgxpool.Pool, keys int) error {
	store, err := pgxstore.New(pool)
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, tables); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "INSERT INTO crash_key SELECT format('k%s', lpad(k::text, 4, '0')), 0 FROM generate_series(0, $1::int - 1) k", keys); err != nil {
		return err
	}
	broker, err := postgres.New(postgres.Config{Pool: pool})
	if err != nil {
		return err
	}
	if err := broker.Register(ctx, topic, consumerName); err != nil {
		return fmt.Errorf("register %s: %w", consumerName, err)
	}
	return broker.Close()
}

// progress is how far a run is.
type progress struct{ made, effects, waiting int64 }

const progressQuery = `SELECT (SELECT sum(seq)::bigint FROM crash_key), (SELECT count(*) FROM crash_effect),
	(SELECT count(*) FROM headrace_outbox) + (SELECT count(*) FROM headrace_broker_message)`

func readProgress(ctx context.Context, pool *pgxpool.Pool) (p progress, err error) {
	err = pool.QueryRow(ctx, progressQuery).Scan(&p.made, &p.effects, &p.waiting)
	return p, err
}
