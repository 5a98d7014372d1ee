package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/stores/schema"
)

// explainTimeout bounds the look at the schema that explains an error.
const explainTimeout = 5 * time.Second

// undefinedTable is the SQLSTATE for a table that is not there.
const undefinedTable = "42P01"

type sqlState interface {
	error
	SQLState() string
}

func notUsable(err error) bool {
	return errors.Is(err, schema.ErrNotMigrated) || errors.Is(err, schema.ErrTooNew)
}

// Check implements [inbox.Database].
func (s *Store) Check(ctx context.Context) error {
	return s.withConn(ctx, func(c schema.Conn) error { return schema.Check(ctx, c, s.names) })
}

// Migrate implements [inbox.Database].
func (s *Store) Migrate(ctx context.Context) error {
	return s.withConn(ctx, func(c schema.Conn) error { return schema.Migrate(ctx, c, s.names) })
}

func (s *Store) withConn(ctx context.Context, fn func(schema.Conn) error) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("schema: connect: %w", err)
	}
	defer conn.Release() // the pool closes a connection that is still in a transaction
	return fn(schemaConn{conn.Conn()})
}

type schemaConn struct{ conn *pgx.Conn }

func (c schemaConn) Exec(ctx context.Context, statement string) error {
	_, err := c.conn.Exec(ctx, statement)
	return err
}

// Scalar uses no prepared statement: the tables it looks at come and go.
func (c schemaConn) Scalar(ctx context.Context, query string) (string, error) {
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
