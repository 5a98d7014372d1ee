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
	advance := s.advance
	if s.names.Dialect == schema.MySQL {
		advance = s.advanceMySQL
	}
	current, err := advance(ctx, tx, consumer, entity, version)
	if err != nil {
		return false, fmt.Errorf("inbox: advance %q to version %d for %q: %w", entity, version, consumer, err)
	}
	return current, nil
}

func (s *Store) advance(ctx context.Context, tx *sql.Tx, consumer, entity string, version int64) (bool, error) {
	result, err := tx.ExecContext(ctx, s.sql.advance, consumer, entity, version)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

func (s *Store) advanceMySQL(ctx context.Context, tx *sql.Tx, consumer, entity string, version int64) (bool, error) {
	if _, err := tx.ExecContext(ctx, s.sql.ensureVersion, consumer, entity); err != nil {
		return false, err
	}
	var last int64
	if err := tx.QueryRowContext(ctx, s.sql.lockVersion, consumer, entity).Scan(&last); err != nil {
		return false, err
	}
	if version < last {
		return false, nil
	}
	_, err := tx.ExecContext(ctx, s.sql.advance, version, consumer, entity)
	return err == nil, err
}
