package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/headrace-go/headrace/poison"
)

const microsecond = time.Microsecond

// ErrNotFound says that there is no letter of that id.
var ErrNotFound = errors.New("no such dead letter")

// ErrBusy says that a letter is not in a state that allows what was asked, or that a redrive has claimed it.
var ErrBusy = errors.New("the dead letter's state does not allow it")

// Store finds letters and changes their states. It is safe for concurrent use.
type Store struct {
	table      Table
	protection Protection
}

// NewStore returns a store on table (a store's DeadLetters()). protection must be what [Index] had.
func NewStore(table Table, protection Protection) (*Store, error) {
	if table == nil {
		return nil, errors.New("deadletter: table is nil")
	}
	return &Store{table: table, protection: protection}, nil
}

// Index returns a handler for runtime.HandleDeadLettersTx that puts each dead letter into w (a store of that transaction type): a
// dead letter that comes twice is stored once. protection must be what [NewStore] gets.
//
//	runtime.HandleDeadLettersTx(rt.Consumer("billing.deadletters", "orders.DLT"), store, deadletter.Index(store, deadletter.Protection{}))
func Index[Tx any](w Writer[Tx], protection Protection) func(context.Context, Tx, poison.Record) error {
	return func(ctx context.Context, tx Tx, r poison.Record) error {
		row, err := protection.row(r, "")
		if err != nil {
			return err
		}
		_, err = w.InsertDeadLetter(ctx, tx, row)
		return err
	}
}

// Add puts records into the store and returns how many were not there yet.
func (s *Store) Add(ctx context.Context, records ...poison.Record) (int, error) {
	rows := make([]Row, len(records))
	for i := range records {
		var err error
		if rows[i], err = s.protection.row(records[i], ""); err != nil {
			return 0, err
		}
	}
	return s.table.Insert(ctx, rows...)
}

// Cursor is a place between two pages. The zero Cursor is the beginning.
type Cursor struct{ row *Row }

// List returns at most limit (1 to [MaxLimit]) letters that f selects in the order of their failure, the newest first if so asked, and
// where the next page begins. They lack what is in the document alone: payload, metadata, stack and times but that of the failure.
func (s *Store) List(ctx context.Context, f Filter, newest bool, from Cursor, limit int) ([]Letter, Cursor, error) {
	rows, err := s.rows(ctx, Query{Filter: f, Newest: newest, After: from.row, Limit: limit})
	if err != nil || len(rows) == 0 {
		return nil, from, err
	}
	letters, err := s.letters(rows)
	return letters, Cursor{&rows[len(rows)-1]}, err
}

// Get returns whole letters by their ids, at most [MaxLimit], in the order of their failure. Those that are not there are missing.
func (s *Store) Get(ctx context.Context, ids ...string) ([]Letter, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := s.rows(ctx, Query{Filter: Filter{IDs: ids}, Limit: MaxLimit, Bodies: true})
	if err != nil {
		return nil, err
	}
	return s.letters(rows)
}

// One returns one whole letter, or an error that wraps [ErrNotFound].
func (s *Store) One(ctx context.Context, id string) (Letter, error) {
	letters, err := s.Get(ctx, id)
	if err == nil && len(letters) == 0 {
		err = fmt.Errorf("dead letter %q: %w", id, ErrNotFound)
	}
	if err != nil {
		return Letter{}, err
	}
	return letters[0], nil
}

func (s *Store) rows(ctx context.Context, q Query) ([]Row, error) {
	if q.Limit < 1 || q.Limit > MaxLimit {
		return nil, fmt.Errorf("deadletter: limit %d: want 1 to %d", q.Limit, MaxLimit)
	}
	var err error
	if q.Filter, err = s.protection.filter(q.Filter); err != nil {
		return nil, err
	}
	return s.table.Select(ctx, q)
}

func (s *Store) letters(rows []Row) ([]Letter, error) {
	letters := make([]Letter, len(rows))
	for i := range rows {
		var err error
		if letters[i], err = s.protection.letter(&rows[i]); err != nil {
			return nil, err
		}
	}
	return letters, nil
}

// Count tells how many letters f selects, by state.
func (s *Store) Count(ctx context.Context, f Filter) (map[State]int64, error) {
	f, err := s.protection.filter(f)
	if err != nil {
		return nil, err
	}
	return s.table.Count(ctx, f)
}

// Groups returns the kinds of failure among the letters that f selects, at most limit, the most frequent first.
func (s *Store) Groups(ctx context.Context, f Filter, limit int) ([]Group, error) {
	if limit < 1 || limit > MaxLimit {
		return nil, fmt.Errorf("deadletter: limit %d: want 1 to %d", limit, MaxLimit)
	}
	f, err := s.protection.filter(f)
	if err != nil {
		return nil, err
	}
	return s.table.Groups(ctx, f, limit)
}

// Trail returns what was done to a letter, oldest first, at most [MaxLimit] entries. That of "" tells of purges.
func (s *Store) Trail(ctx context.Context, id string) ([]Entry, error) {
	if id != "" {
		id = rowID(id, nil)
	}
	return s.table.Trail(ctx, id, MaxLimit)
}

// By is who does something to letters, and why. Both are required.
type By struct{ Actor, Reason string }

func (b By) entry(action string) (Entry, error) {
	for _, t := range []namedText{{"actor", b.Actor}, {"reason", b.Reason}} {
		if t.value == "" {
			return Entry{}, fmt.Errorf("deadletter: %s: the %s is empty: the trail needs it", action, t.field)
		}
		if err := checkText(t.field, t.value); err != nil {
			return Entry{}, err
		}
	}
	return Entry{Actor: column(b.Actor), Reason: b.Reason, Action: action}, nil
}

// Discard gives up the letters that f selects and that are not being redriven, and returns how many. It knows nothing of parked
// messages: what is parked still runs when its key is released. Take it out first (parking.Ledger.Skip).
func (s *Store) Discard(ctx context.Context, f Filter, by By) (int, error) {
	return s.moveAll(ctx, f, by, ActionDiscard, Discarded)
}

// Resolve marks the letters that f selects as done with, by other means than a redrive, and returns how many. What is
// parked is not resolved by it, see [Store.Discard].
func (s *Store) Resolve(ctx context.Context, f Filter, by By) (int, error) {
	return s.moveAll(ctx, f, by, ActionResolve, Resolved)
}

// moveAll moves what f selects, page by page. Letters that were moved, and those that could not be, are behind it.
func (s *Store) moveAll(ctx context.Context, f Filter, by By, action string, to State) (int, error) {
	e, err := by.entry(action)
	if err != nil {
		return 0, err
	}
	change := Change{From: []State{New, Redriven}, To: to, Entry: e}
	total := 0
	err = s.eachPage(ctx, f, func(ids []string) error {
		change.IDs = ids
		moved, err := s.table.Move(ctx, change)
		total += len(moved)
		return err
	})
	return total, err
}

// Purge deletes the letters that f selects and that are not being redriven, with their trails, and returns how many. One entry that
// tells who did it and why stays in the trail of "". A purge of everything needs a filter that says so: the zero Filter is refused.
//
// For retention, call it with the states that are done with and Until; for the removal of a person's data, with Subject. Copies of
// parked messages are in other tables, see [Store.Discard] and the runbook.
func (s *Store) Purge(ctx context.Context, f Filter, by By) (int, error) {
	e, err := by.entry(ActionPurge)
	if err != nil {
		return 0, err
	}
	if f.IsZero() {
		return 0, errors.New("deadletter: purge: the filter selects everything: name the states")
	}
	total := 0
	err = s.eachPage(ctx, f, func(ids []string) error {
		n, err := s.table.Purge(ctx, ids, e)
		total += n
		return err
	})
	return total, err
}

// pageSize is how many letters one statement changes.
const pageSize = 200

func (s *Store) eachPage(ctx context.Context, f Filter, do func(ids []string) error) error {
	q := Query{Filter: f, Limit: pageSize}
	for {
		rows, err := s.rows(ctx, q)
		if err != nil || len(rows) == 0 {
			return err
		}
		ids := make([]string, len(rows))
		for i := range rows {
			ids[i] = rows[i].ID
		}
		if err := do(ids); err != nil {
			return err
		}
		q.After = &rows[len(rows)-1]
	}
}

// Keep deletes, for as long as ctx lasts, what is done with (redriven, resolved, discarded) and older than retention. It looks every
// hour, or every tenth of the retention if that is less. What is new is never deleted: nobody has seen it yet.
func (s *Store) Keep(ctx context.Context, retention time.Duration, onError func(error)) error {
	if retention <= 0 {
		return fmt.Errorf("deadletter: retention %v: want more than 0", retention)
	}
	tick := time.NewTicker(max(min(time.Hour, retention/10), time.Millisecond))
	defer tick.Stop()
	for {
		f := Filter{States: []State{Redriven, Resolved, Discarded}, Until: time.Now().Add(-retention)}
		if _, err := s.Purge(ctx, f, By{Actor: "headrace", Reason: "retention of " + retention.String()}); err != nil && ctx.Err() == nil && onError != nil {
			onError(fmt.Errorf("purge old dead letters: %w", err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// claimable are the states a redrive may begin in by f: what f names, else New. An expired claim comes on top.
func claimable(f Filter) []State {
	if len(f.States) == 0 {
		return []State{New}
	}
	return slices.DeleteFunc(slices.Clone(f.States), func(s State) bool { return s == Redriving })
}
