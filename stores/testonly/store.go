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
	versions map[inbox.Claim]int64
}

var _ inbox.Store[*Tx] = (*Store)(nil)

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
	if err := s.slots.Take(ctx); err != nil {
		return false, fmt.Errorf("inbox: begin %q for %q: %w", c.ID, c.Consumer, err)
	}
	defer s.slots.Give()

	s.mu.Lock()
	_, duplicate := s.claims[c]
	tx := &Tx{values: maps.Clone(s.values), versions: maps.Clone(s.versions)}
	s.mu.Unlock()
	if duplicate {
		return false, nil
	}
	defer func() { tx.ended = true }()
	if err := fn(ctx, tx); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("inbox: commit %q for %q: %w", c.ID, c.Consumer, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values, s.versions = maps.Clone(tx.values), tx.versions
	s.claims[c] = time.Now()
	return true, nil
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
