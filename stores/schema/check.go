package schema

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// Conn is one connection to the database, lent to [Check] or [Migrate] until they return. The
// statements have no arguments.
type Conn interface {
	// Exec runs one statement.
	Exec(ctx context.Context, statement string) error
	// Scalar runs a query of one column and at most one row, and returns it as text; "" is no row or NULL.
	Scalar(ctx context.Context, query string) (string, error)
}

// ErrNotMigrated is wrapped by errors about a schema that is missing or too old for this program.
var ErrNotMigrated = errors.New("the schema is not migrated")

// ErrTooNew is wrapped by errors about a schema that only a newer program can use.
var ErrTooNew = errors.New("the schema is too new for this program")

// Check reports whether the tables are there in a version that this program can use: its own, or one
// newer. It changes nothing and takes no lock. Its error names the table or the versions and what to
// do, and wraps [ErrNotMigrated] or [ErrTooNew] when that is the cause.
func Check(ctx context.Context, conn Conn, n Names) error {
	have, err := version(ctx, conn, n)
	if err != nil {
		return err
	}
	if err := compatible(have, Latest(), n); err != nil {
		return err
	}
	// The version tells what was applied once; a table can have been dropped or be out of sight since.
	for _, short := range Tables(n) {
		found, err := exists(ctx, conn, n, short)
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("%w: table %s is missing though the schema is at version %d; call Migrate on an intact schema, or restore the table", ErrNotMigrated, n.Table(short), have)
		}
	}
	return nil
}

// compatible decides whether a program that wants one version can use a schema that has another.
func compatible(have, want int, n Names) error {
	switch {
	case have == 0:
		return fmt.Errorf("%w: table %s is missing; call Migrate, or apply the files in stores/schema/%s", ErrNotMigrated, n.Table("migration"), n.Dialect)
	case have < want:
		return fmt.Errorf("%w: it has version %d (table %s) and this program needs %d; call Migrate, or apply the files in stores/schema/%s", ErrNotMigrated, have, n.Table("migration"), want, n.Dialect)
	case have > want+1:
		return fmt.Errorf("%w: it has version %d (table %s) and this program knows %d and can use %d; deploy a newer program", ErrTooNew, have, n.Table("migration"), want, want+1)
	}
	return nil
}

// version returns the schema's version, 0 when there is none.
func version(ctx context.Context, conn Conn, n Names) (int, error) {
	found, err := exists(ctx, conn, n, "migration")
	if err != nil || !found {
		return 0, err
	}
	asText := "text"
	if n.Dialect == MySQL {
		asText = "char"
	}
	table := n.Table("migration")
	text, err := conn.Scalar(ctx, "SELECT CAST(max(version) AS "+asText+") FROM "+table)
	if err != nil {
		return 0, fmt.Errorf("schema: read the version from %s: %w", table, err)
	}
	if text == "" {
		return 0, nil
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < 0 {
		return 0, fmt.Errorf("schema: version %q in table %s: want a whole number", text, table)
	}
	return v, nil
}

func exists(ctx context.Context, conn Conn, n Names, short string) (bool, error) {
	var query string
	switch n.Dialect {
	case Postgres:
		query = "SELECT to_regclass('" + n.Table(short) + "')::text"
	case MySQL:
		query = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '" + n.Prefix + short + "'"
	case SQLite:
		query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = '" + n.Prefix + short + "'"
	}
	text, err := conn.Scalar(ctx, query)
	if err != nil {
		return false, fmt.Errorf("schema: look for table %s: %w", n.Table(short), err)
	}
	return text != "", nil
}
