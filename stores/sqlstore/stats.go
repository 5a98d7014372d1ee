package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/inbox"
)

// Stats implements [inbox.Observed].
func (s *Store) Stats(ctx context.Context) (inbox.Stats, error) {
	stats := inbox.Stats{Duplicates: s.duplicates.Load()}
	var age float64
	err := s.db.QueryRowContext(ctx, s.sql.oldest).Scan(&age)
	if err == nil || errors.Is(err, sql.ErrNoRows) {
		err = s.db.QueryRowContext(ctx, s.sql.size).Scan(&stats.Claims)
	}
	if err != nil {
		return stats, fmt.Errorf("inbox: stats: %w", s.explain(ctx, err))
	}
	stats.Oldest = max(0, time.Duration(age*float64(time.Second)))
	return stats, nil
}
