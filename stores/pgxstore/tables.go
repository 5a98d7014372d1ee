package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// pruned is how far one pass over the old claims has come. Deleted rows stay in the index until they are
// vacuumed, and all the longer while some transaction is open: a pass that began at the oldest each time would
// read them again and again.
type pruned struct {
	mu     sync.Mutex
	before time.Time // of the pass
	from   time.Time // the latest that was deleted
}

// Prune implements [inbox.Database]. It is one statement; keep limit small (a thousand, say), for it
// locks what it deletes. Calls with the same before are one pass: each goes on where the last one ended, in the
// order of time, which is nearly that of the pages on disk. A claim whose transaction was open for long is
// found by the next pass.
func (s *Store) Prune(ctx context.Context, before time.Time, limit int) (int, error) {
	if limit < 1 {
		return 0, fmt.Errorf("inbox: prune: limit %d: want at least 1", limit)
	}
	s.pruned.mu.Lock()
	defer s.pruned.mu.Unlock()
	if !s.pruned.before.Equal(before) {
		s.pruned.before, s.pruned.from = before, time.Unix(0, 0)
	}
	var n int
	err := s.pool.QueryRow(ctx, s.sql.prune, s.pruned.from, before, limit).Scan(&n, &s.pruned.from)
	if err != nil {
		s.pruned.before = time.Time{}
		return 0, fmt.Errorf("inbox: prune claims before %s: %w", before.Format(time.RFC3339), s.explain(ctx, err))
	}
	if n < limit {
		s.pruned.before = time.Time{} // the pass is done
	}
	return n, nil
}

// Stats implements [inbox.Observed].
func (s *Store) Stats(ctx context.Context) (inbox.Stats, error) {
	stats := inbox.Stats{Duplicates: s.duplicates.Load()}
	var age float64
	err := s.pool.QueryRow(ctx, s.sql.oldest).Scan(&age)
	if err == nil || errors.Is(err, pgx.ErrNoRows) {
		err = s.pool.QueryRow(ctx, s.sql.size).Scan(&stats.Claims)
	}
	if err != nil {
		return stats, fmt.Errorf("inbox: stats: %w", s.explain(ctx, err))
	}
	stats.Oldest = max(0, time.Duration(age*float64(time.Second)))
	return stats, nil
}
