package pgxstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/inbox"
)

// Advance implements [inbox.Store].
func (s *Store) Advance(ctx context.Context, tx pgx.Tx, consumer, entity string, version int64) (bool, error) {
	if err := inbox.ValidateEntity(consumer, entity); err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, s.sql.advance, consumer, entity, version)
	if err != nil {
		return false, fmt.Errorf("inbox: advance %q to version %d for %q: %w", entity, version, consumer, err)
	}
	return tag.RowsAffected() == 1, nil
}

// Prune implements [inbox.Database]. It is one statement; keep limit small (a thousand, say), for it
// locks what it deletes.
func (s *Store) Prune(ctx context.Context, before time.Time, limit int) (int, error) {
	if limit < 1 {
		return 0, fmt.Errorf("inbox: prune: limit %d: want at least 1", limit)
	}
	tag, err := s.pool.Exec(ctx, s.sql.prune, before, limit)
	if err != nil {
		return 0, fmt.Errorf("inbox: prune claims before %s: %w", before.Format(time.RFC3339), s.explain(ctx, err))
	}
	return int(tag.RowsAffected()), nil
}
