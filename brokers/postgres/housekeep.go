package postgres

import (
	"context"
	"time"
)

const (
	// proveEvery is the time between two looks at who writes.
	proveEvery = 250 * time.Millisecond
	// promoteEvery is how often delayed messages whose time has come are looked for, promoteAtOnce how many move at once.
	promoteEvery  = time.Second
	promoteAtOnce = 1_000
	// lagEvery is the least time between two counts of what is not acked, lagLimit where a count ends.
	lagEvery = 3 * time.Second
	lagLimit = 1_000_000
)

// housekeep does what can wait, with statements under work, until ctx ends.
func (s *subscription) housekeep(ctx, work context.Context) {
	ticker := time.NewTicker(proveEvery)
	defer ticker.Stop()
	var promoteAt, countAt time.Time
	var p proof
	for looks := 0; ; {
		if s.busy.Swap(false) {
			looks = 3 // it takes so many to prove what is there now
		}
		if looks > 0 {
			looks--
			s.prove(work, &p)
		}
		if now := time.Now(); !now.Before(promoteAt) {
			promoteAt = now.Add(promoteEvery)
			s.promote(work)
		}
		if now := time.Now(); !now.Before(countAt) && s.count(work) {
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

func (s *subscription) prove(ctx context.Context, p *proof) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	var last int64
	var started time.Time
	var writers []string
	err := s.broker.pool.QueryRow(ctx, s.broker.sql.writers).Scan(&last, &started, &writers)
	if err != nil {
		return // reading begins where it did
	}
	proven, void := p.saw(last, started, writers)
	if void {
		s.safe.Store(0)
		s.void.Store(true)
		s.wake()
	} else if proven > 0 {
		s.safe.Store(proven)
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
