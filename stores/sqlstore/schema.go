package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/stores/schema"
)

// Check implements [inbox.Database]. On MySQL it also fails where the pool's connections read what is not committed.
func (s *Store) Check(ctx context.Context) error {
	return s.withConn(ctx, func(c schema.Conn) error { return schema.Check(ctx, c, s.names) })
}

// Migrate implements [inbox.Database], and fails as Check does where the pool's connections read what is not committed.
func (s *Store) Migrate(ctx context.Context) error {
	return s.withConn(ctx, func(c schema.Conn) error { return schema.Migrate(ctx, c, s.names) })
}

func (s *Store) withConn(ctx context.Context, fn func(schema.Conn) error) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("schema: connect: %w", err)
	}
	err = s.checkIsolation(ctx, conn)
	if err == nil {
		err = fn(schemaConn{conn})
	}
	if err != nil {
		// It may still be in a transaction or hold a lock: not back to the pool with it.
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = conn.Close()
		return err
	}
	return conn.Close()
}

const readUncommitted = "READ-UNCOMMITTED"

// checkIsolation refuses connections on which the relay would publish what is rolled back, and a group take a claim that is
// rolled back for a duplicate. MySQL and MariaDB have different names for the variable.
func (s *Store) checkIsolation(ctx context.Context, conn *sql.Conn) error {
	if s.names.Dialect != schema.MySQL {
		return nil
	}
	var name, level string
	err := conn.QueryRowContext(ctx, "SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')").Scan(&name, &level)
	if err != nil {
		return fmt.Errorf("sqlstore: read the isolation of the pool's connections: %w", err)
	}
	if level == readUncommitted {
		return fmt.Errorf("sqlstore: %s of the pool's connections is %s: want READ-COMMITTED or above, or rows are published that are rolled back", name, level)
	}
	return nil
}

type schemaConn struct{ conn *sql.Conn }

func (c schemaConn) Exec(ctx context.Context, statement string) error {
	_, err := c.conn.ExecContext(ctx, statement)
	return err
}

func (c schemaConn) Scalar(ctx context.Context, query string) (string, error) {
	var v sql.NullString
	err := c.conn.QueryRowContext(ctx, query).Scan(&v)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return v.String, err
}

// explainTimeout bounds the look at the schema that explains an error.
const explainTimeout = 5 * time.Second

// undefinedTable is Postgres' SQLSTATE for a table that is not there.
const undefinedTable = "42P01"

// explain adds to the error of a statement what is wrong with the schema, if that is the cause.
// Drivers agree on no form for "no such table", so it looks.
func (s *Store) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, driver.ErrBadConn) {
		return err
	}
	if state, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok && state.SQLState() != undefinedTable {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	if cause := s.Check(ctx); errors.Is(cause, schema.ErrNotMigrated) || errors.Is(cause, schema.ErrTooNew) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
