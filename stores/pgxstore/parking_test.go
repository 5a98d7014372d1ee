package pgxstore_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/headracetest/parkingsuite"
)

func (p place) parking(t *testing.T) parkingsuite.Harness[pgx.Tx] {
	p.execute(t, "CREATE TABLE "+p.schema+".history (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL)")
	store := p.migrated(t)
	return parkingsuite.Harness[pgx.Tx]{
		Store:   store,
		Letters: store.DeadLetters(),
		Effect: func(ctx context.Context, tx pgx.Tx, name string) error {
			_, err := tx.Exec(ctx, "INSERT INTO "+p.schema+".history (name) VALUES ($1)", name)
			return err
		},
		History: func(ctx context.Context) ([]string, error) {
			rows, err := p.pool.Query(ctx, "SELECT name FROM "+p.schema+".history ORDER BY n")
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowTo[string])
		},
		Kill: func(ctx context.Context, tx pgx.Tx) error {
			_, err := p.pool.Exec(ctx, "SELECT pg_terminate_backend($1)", tx.Conn().PgConn().PID())
			return err
		},
	}
}

func TestParking(t *testing.T) {
	for name, mode := range map[string]pgx.QueryExecMode{
		"Prepared":       pgx.QueryExecModeCacheStatement,
		"SimpleProtocol": pgx.QueryExecModeSimpleProtocol, // behind old connection poolers
	} {
		t.Run(name, func(t *testing.T) { parkingsuite.Run(t, newPlace(t, mode).parking(t)) })
	}
}
