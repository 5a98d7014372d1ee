package postgres

import (
	"context"
	"time"
)

const (
	// promoteEvery is how often delayed messages whose time has come are looked for, promoteAtOnce how many move at once.
	promoteEvery  = time.Second
	promoteAtOnce = 1_000
	// lagEvery is the least time between two counts of what is not acked, lagLimit where a count ends.
	lagEvery = 3 * time.Second
	lagLimit = 1_000_000
)

// housekeep does what can wait, until ctx ends.
func (s *subscription) housekeep(ctx context.Context) {
	ticker := time.NewTicker(promoteEvery)
	defer ticker.Stop()
	var countAt time.Time
	for {
		s.promote(ctx)
		if now := time.Now(); !now.Before(countAt) && s.count(ctx) {
			// A large backlog takes long to count: a twentieth of the time is enough.
			countAt = now.Add(max(lagEvery, 20*time.Since(now)))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// promote moves delayed messages of the topic. Its failures are those of the fetcher as well, who tells of them.
func (s *subscription) promote(ctx context.Context) {
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(ctx, statementTimeout)
		tag, err := s.broker.pool.Exec(call, s.broker.sql.promote, s.topic, promoteAtOnce)
		cancel()
		if err != nil || tag.RowsAffected() == 0 {
			return
		}
		s.broker.Wake(s.topic)
	}
}

// count counts the lag, and reports whether it could.
func (s *subscription) count(ctx context.Context) bool {
	covers := s.covers.Load()
	if covers == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var n int64
	if err := s.broker.pool.QueryRow(ctx, s.broker.sql.lag, s.group.id, *covers, lagLimit).Scan(&n); err != nil {
		return false
	}
	s.lag.Store(n)
	return true
}
