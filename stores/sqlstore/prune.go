package sqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/stores/schema"
)

// Prune implements [inbox.Database]. It is one statement; keep limit small (a thousand, say), for it
// locks what it deletes.
func (s *Store) Prune(ctx context.Context, before time.Time, limit int) (int, error) {
	if limit < 1 {
		return 0, fmt.Errorf("inbox: prune: limit %d: want at least 1", limit)
	}
	var cut any = before
	switch s.names.Dialect {
	case schema.Postgres:
	case schema.MySQL: // as text, for drivers convert times to a zone of their own
		cut = before.UTC().Format("2006-01-02 15:04:05.000000")
	case schema.SQLite:
		cut = before.UnixMicro()
	}
	result, err := s.db.ExecContext(ctx, s.sql.prune, cut, limit)
	if err != nil {
		return 0, fmt.Errorf("inbox: prune claims before %s: %w", before.Format(time.RFC3339), s.explain(ctx, err))
	}
	n, err := result.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("inbox: prune claims before %s: %w", before.Format(time.RFC3339), err)
	}
	return int(n), nil
}
