package deadletter

import (
	"context"

	"github.com/headrace-go/headrace/poison"
)

func (s *Store) pending(ctx context.Context, f Filter, after Cursor, limit int) ([]Letter, Cursor, error) {
	// A letter whose claim has ended is in state redriving; one that is claimed is refused by the claim.
	f.States = append(claimable(f), Redriving)
	rows, err := s.rows(ctx, Query{Filter: f, After: after.row, Limit: limit, Bodies: true})
	if err != nil || len(rows) == 0 {
		return nil, after, err
	}
	letters, err := s.letters(rows)
	return letters, Cursor{&rows[len(rows)-1]}, err
}

func (s *Store) claim(ctx context.Context, c Claim, f Filter, letters []Letter, e Entry) ([]Letter, error) {
	ids := make([]string, len(letters))
	byID := make(map[string]Letter, len(letters))
	for i, l := range letters {
		ids[i], byID[l.ID] = l.ID, l
	}
	got, err := s.table.Claim(ctx, c, Change{IDs: ids, From: claimable(f), To: Redriving, Entry: e})
	if err != nil {
		return nil, err
	}
	mine := make([]Letter, len(got))
	for i, id := range got {
		mine[i] = byID[id]
	}
	return mine, nil
}

func (s *Store) settle(ctx context.Context, c Claim, ids []string, to State, e Entry) ([]string, error) {
	return s.table.Settle(ctx, c, Change{IDs: ids, To: to, Entry: e})
}

func (s *Store) counts(ctx context.Context, f Filter) (map[State]int64, error) {
	return s.Count(ctx, f)
}

// Failed implements the first half of [Watcher]: the letters of messages that were redriven in batch and failed again, as far as they
// were indexed, at most [MaxLimit].
func (s *Store) Failed(ctx context.Context, batch string) ([]poison.Record, error) {
	letters, _, err := s.List(ctx, Filter{Batch: batch}, false, Cursor{}, MaxLimit)
	records := make([]poison.Record, len(letters))
	for i := range letters {
		records[i] = letters[i].Record
	}
	return records, err
}
