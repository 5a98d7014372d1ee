package sqlstore

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/schema"
)

// Advance implements [inbox.Store].
func (s *Store) Advance(ctx context.Context, tx *sql.Tx, consumer, entity string, version int64) (bool, error) {
	if err := inbox.ValidateEntity(consumer, entity); err != nil {
		return false, err
	}
	n, err := s.advance(ctx, tx, consumer, entity, version)
	if err != nil {
		return false, fmt.Errorf("inbox: advance %q to version %d for %q: %w", entity, version, consumer, err)
	}
	return n > 0, nil
}

func (s *Store) advance(ctx context.Context, tx *sql.Tx, consumer, entity string, version int64) (int64, error) {
	args := []any{consumer, entity, version}
	if s.names.Dialect == schema.MySQL {
		if _, err := tx.ExecContext(ctx, s.sql.ensureVersion, consumer, entity); err != nil {
			return 0, err
		}
		args = []any{version, consumer, entity, version}
	}
	result, err := tx.ExecContext(ctx, s.sql.advance, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
