package pgxstore

import (
	"context"
	"errors"
	"time"

	"github.com/headrace-go/headrace/internal/pgxschema"
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
func (s *Store) Check(ctx context.Context) error { return pgxschema.Check(ctx, s.pool, s.names) }

// Migrate implements [inbox.Database].
func (s *Store) Migrate(ctx context.Context) error { return pgxschema.Migrate(ctx, s.pool, s.names) }
