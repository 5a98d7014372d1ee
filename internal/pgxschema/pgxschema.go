// Package pgxschema runs stores/schema on a pool of pgx.
package pgxschema

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/stores/schema"
)

// Migrate is [schema.Migrate] on a connection of the pool.
func Migrate(ctx context.Context, pool *pgxpool.Pool, names schema.Names) error {
	return withConn(ctx, pool, func(c schema.Conn) error { return schema.Migrate(ctx, c, names) })
}

// Check is [schema.Check] on a connection of the pool.
func Check(ctx context.Context, pool *pgxpool.Pool, names schema.Names) error {
	return withConn(ctx, pool, func(c schema.Conn) error { return schema.Check(ctx, c, names) })
}

// explainTimeout bounds the look at the schema that explains an error.
const explainTimeout = 5 * time.Second

// undefinedTable is the SQLSTATE for a table that is not there.
const undefinedTable = "42P01"

// Explain adds to the error of a statement what is wrong with the schema, if that is the cause.
func Explain(ctx context.Context, pool *pgxpool.Pool, names schema.Names, err error) error {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) || state.SQLState() != undefinedTable || ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	if cause := Check(ctx, pool, names); errors.Is(cause, schema.ErrNotMigrated) || errors.Is(cause, schema.ErrTooNew) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

func withConn(ctx context.Context, pool *pgxpool.Pool, fn func(schema.Conn) error) error {
	c, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("schema: connect: %w", err)
	}
	defer c.Release() // the pool closes a connection that is still in a transaction
	return fn(conn{c.Conn()})
}

type conn struct{ conn *pgx.Conn }

func (c conn) Exec(ctx context.Context, statement string) error {
	_, err := c.conn.Exec(ctx, statement)
	return err
}

// Scalar uses no prepared statement: the tables it looks at come and go.
func (c conn) Scalar(ctx context.Context, query string) (string, error) {
	var v *string
	err := c.conn.QueryRow(ctx, query, pgx.QueryExecModeExec).Scan(&v)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	if v == nil {
		return "", err
	}
	return *v, err
}
