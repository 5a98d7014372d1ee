// Package testonly is a store in memory, for tests of handlers. It keeps nothing: after a restart every
// message takes effect again, so no service may use it. It runs one transaction at a time.
package testonly

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/internal/slots"
)

// Store is an inbox and a map of strings that stands for an application's tables. It is safe for
// concurrent use.
type Store struct {
	slots slots.Slots

	mu     sync.Mutex // held for a moment; the order of transactions is slots'
	values map[string]string
	claims map[inbox.Claim]time.Time
	// versions of entities, whose "id" is the entity.
	versions   map[inbox.Claim]int64
	duplicates int64
}

var (
	_ inbox.GroupStore[*Tx] = (*Store)(nil)
	_ inbox.Observed        = (*Store)(nil)
)

// New returns an empty store.
func New() *Store {
	return &Store{
		slots:    slots.New(1),
		values:   map[string]string{},
		claims:   map[inbox.Claim]time.Time{},
		versions: map[inbox.Claim]int64{},
	}
}

// Tx is a transaction: what it changes is seen by others when it was committed. It is for one goroutine
// and ends with the handler.
type Tx struct {
	values   map[string]string
	versions map[inbox.Claim]int64
	ended    bool
}

// Get returns the value of key, "" if it has none.
func (tx *Tx) Get(key string) string { return tx.values[key] }

// Set gives key a value. It panics after the transaction has ended.
func (tx *Tx) Set(key, value string) {
	if tx.ended {
		panic("testonly: Set after the transaction has ended")
	}
	tx.values[key] = value
}

// Get returns the committed value of key, "" if it has none.
func (s *Store) Get(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values[key]
}

// Once implements [inbox.Store].
func (s *Store) Once(ctx context.Context, c inbox.Claim, fn func(ctx context.Context, tx *Tx) error) (bool, error) {
	if err := c.Validate(); err != nil {
		return false, err
	}
	claimed := false
	err := s.OnceGroup(ctx, []inbox.Claim{c}, func(ctx context.Context, tx *Tx, isNew []bool) error {
		if claimed = isNew[0]; !claimed {
			return nil
		}
		return fn(ctx, tx)
	})
	return claimed && err == nil, err
}

// OnceGroup implements [inbox.GroupStore].
func (s *Store) OnceGroup(ctx context.Context, claims []inbox.Claim, fn func(ctx context.Context, tx *Tx, isNew []bool) error) error {
	if err := s.slots.Take(ctx); err != nil {
		return fmt.Errorf("inbox: begin %d of %q: %w", len(claims), claims[0].Consumer, err)
	}
	defer s.slots.Give()

	s.mu.Lock()
	isNew := make([]bool, len(claims))
	for i, c := range claims {
		_, known := s.claims[c]
		isNew[i] = !known
		if known {
			s.duplicates++
		}
	}
	tx := &Tx{values: maps.Clone(s.values), versions: maps.Clone(s.versions)}
	s.mu.Unlock()
	defer func() { tx.ended = true }()
	if err := fn(ctx, tx, isNew); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("inbox: commit %d of %q: %w", len(claims), claims[0].Consumer, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values, s.versions = maps.Clone(tx.values), tx.versions
	for i, c := range claims {
		if isNew[i] {
			s.claims[c] = time.Now()
		}
	}
	return nil
}

// Advance implements [inbox.Store].
func (s *Store) Advance(_ context.Context, tx *Tx, consumer, entity string, version int64) (bool, error) {
	if err := inbox.ValidateEntity(consumer, entity); err != nil {
		return false, err
	}
	key := inbox.Claim{Consumer: consumer, ID: entity}
	if last, seen := tx.versions[key]; seen && version < last {
		return false, nil
	}
	tx.versions[key] = version
	return true, nil
}

// Check implements [inbox.Database]. There is nothing to check.
func (s *Store) Check(context.Context) error { return nil }

// Migrate implements [inbox.Database]. There is nothing to migrate.
func (s *Store) Migrate(context.Context) error { return nil }

// MaxConcurrency is 1.
func (s *Store) MaxConcurrency() int { return s.slots.Len() }

// Prune implements [inbox.Database].
func (s *Store) Prune(_ context.Context, before time.Time, limit int) (int, error) {
	if limit < 1 {
		return 0, fmt.Errorf("inbox: prune: limit %d: want at least 1", limit)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for c, at := range s.claims {
		if n < limit && at.Before(before) {
			delete(s.claims, c)
			n++
		}
	}
	return n, nil
}

// Stats implements [inbox.Observed].
func (s *Store) Stats(context.Context) (inbox.Stats, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := inbox.Stats{Claims: int64(len(s.claims)), Duplicates: s.duplicates}
	for _, at := range s.claims {
		stats.Oldest = max(stats.Oldest, time.Since(at))
	}
	return stats, nil
}
