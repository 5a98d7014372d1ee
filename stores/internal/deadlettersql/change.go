package deadlettersql

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/stores/schema"
)

// Insert implements deadletter.Table.
func (t *Table) Insert(ctx context.Context, rows ...deadletter.Row) (int, error) {
	total := 0
	for i := range rows {
		var added bool
		err := t.transact(ctx, func(db DB) (err error) {
			added, err = t.InsertIn(ctx, db, &rows[i])
			return err
		})
		if err != nil {
			return total, err
		}
		if added {
			total++
		}
	}
	return total, nil
}

// InsertIn is Insert of one row within a transaction.
func (t *Table) InsertIn(ctx context.Context, db DB, row *deadletter.Row) (bool, error) {
	added, err := t.add(ctx, db, row)
	if err != nil {
		return false, fmt.Errorf("insert dead letter %s: %w", row.ID, err)
	}
	if !added || row.MessageID == "" {
		return added, nil
	}
	if err := t.supersede(ctx, db, row); err != nil {
		return false, fmt.Errorf("insert dead letter %s: %w", row.ID, err)
	}
	return true, nil
}

func (t *Table) add(ctx context.Context, db DB, r *deadletter.Row) (bool, error) {
	const columns = listed + ", search, document, payload, indexed_at, changed_at"
	args := []any{
		r.ID, string(r.State), r.Consumer, r.Topic, r.Partition, r.Offset, r.Type, r.Subject, r.Key, r.MessageID, r.CorrelationID,
		r.ErrorType, r.Fingerprint, r.Batch, r.Error, r.Deaths, r.Hops, micros(r.FailedAt), r.Redacted, r.Sealed, r.EditedFrom, r.Search, r.Document, r.Payload,
	}
	values := " VALUES (?" + strings.Repeat(", ?", len(args)-1) + ", " + t.now() + ", " + t.now() + ")"
	if t.dialect != schema.MySQL {
		n, err := t.exec(ctx, db, "INSERT INTO "+t.letters+" ("+columns+")"+values+" ON CONFLICT (id) DO NOTHING", args...)
		return n == 1, err
	}
	// INSERT IGNORE would also ignore every other error, and "nothing changed" can count like a new row. So a
	// duplicate gets another token, which counts as 2.
	n, err := t.exec(ctx, db, "INSERT INTO "+t.letters+" ("+columns+")"+values+" ON DUPLICATE KEY UPDATE op = ?", append(args, newToken())...)
	return n == 1, err
}

// supersede leaves one letter to work for each message: the one of its last death. A replay counts deaths from 1 again, and clocks
// differ: a letter has come too late if another one has both more deaths and a later failure.
func (t *Table) supersede(ctx context.Context, db DB, row *deadletter.Row) error {
	others := func(which string, args ...any) ([]string, error) {
		var ids []string
		err := t.query(ctx, db, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			ids = append(ids, id)
			return err
		}, "SELECT id FROM "+t.letters+" WHERE consumer = ? AND message_id = ? AND "+which+" LIMIT 100", append([]any{row.Consumer, row.MessageID}, args...)...)
		return ids, err
	}
	entry := deadletter.Entry{Actor: "headrace", Action: deadletter.ActionSupersede, Reason: "the message died again", Detail: row.ID}
	failed := micros(row.FailedAt)
	later, err := others("deaths > ? AND failed_at >= ?", row.Deaths, failed)
	if err != nil {
		return err
	}
	over := []string{row.ID}
	if len(later) > 0 {
		entry.Detail = later[0]
	} else if over, err = others("state = 'new' AND id <> ? AND (deaths < ? OR failed_at < ?)", row.ID, row.Deaths, failed); err != nil {
		return err
	}
	_, err = t.change(ctx, db, over, "state = 'resolved'", nil, "state = 'new'", nil, entry)
	return err
}

// ResolveIn marks a letter as done with, within a transaction, if it is there and new.
func (t *Table) ResolveIn(ctx context.Context, db DB, id, reason string) error {
	found := false
	// Without a lock: where the letters are in another database, or nowhere, MySQL would lock the gap.
	err := t.query(ctx, db, func(scan func(...any) error) error {
		var one int
		found = true
		return scan(&one)
	}, "SELECT 1 FROM "+t.letters+" WHERE id = ? AND state = 'new'", id)
	if err != nil || !found {
		return err
	}
	_, err = t.change(ctx, db, []string{id}, "state = 'resolved'", nil, "state = 'new'", nil,
		deadletter.Entry{Actor: "headrace", Action: deadletter.ActionResolve, Reason: reason})
	return err
}

// change sets what set says in those of ids for which cond holds, writes e into their trails, and returns them.
func (t *Table) change(ctx context.Context, db DB, ids []string, set string, setArgs []any, cond string, condArgs []any, e deadletter.Entry) ([]string, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	if len(ids) > deadletter.MaxLimit {
		return nil, fmt.Errorf("%d ids: want at most %d", len(ids), deadletter.MaxLimit)
	}
	token := newToken()
	one, idArgs := in("id", ids)
	args := append([]any{token}, setArgs...)
	args = append(append(args, idArgs...), condArgs...)
	n, err := t.exec(ctx, db, "UPDATE "+t.letters+" SET op = ?, changed_at = "+t.now()+", "+set+" WHERE "+one+" AND ("+cond+")", args...)
	if err != nil || n == 0 {
		return nil, err
	}
	changed := make([]string, 0, n)
	err = t.query(ctx, db, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		changed = append(changed, id)
		return err
	}, "SELECT id FROM "+t.letters+" WHERE "+one+" AND op = ? ORDER BY failed_at, id", append(idArgs, token)...)
	if err != nil {
		return nil, err
	}
	return changed, t.write(ctx, db, changed, e)
}

// write adds e to the trails of ids.
func (t *Table) write(ctx context.Context, db DB, ids []string, e deadletter.Entry) error {
	const atOnce = 100
	for len(ids) > 0 {
		n := min(len(ids), atOnce)
		row := "(?, " + t.now() + ", ?, ?, ?, ?, ?)"
		args := make([]any, 0, 6*n)
		for _, id := range ids[:n] {
			args = append(args, id, e.Actor, e.Action, e.Reason, e.Batch, e.Detail)
		}
		if _, err := t.exec(ctx, db, "INSERT INTO "+t.trail+" (letter_id, at, actor, action, reason, batch, detail) VALUES "+
			row+strings.Repeat(", "+row, n-1), args...); err != nil {
			return fmt.Errorf("write the trail: %w", err)
		}
		ids = ids[n:]
	}
	return nil
}

// unclaimed is the condition that nobody redrives the row.
func (t *Table) unclaimed() string {
	return "state <> 'redriving' OR claimed_until <= " + t.now()
}

// Claim implements deadletter.Table.
func (t *Table) Claim(ctx context.Context, c deadletter.Claim, change deadletter.Change) (ids []string, err error) {
	switch {
	case c.Token == "":
		return nil, errors.New(`claim dead letters: the token is ""`)
	case c.TTL.Microseconds() < 1000:
		return nil, fmt.Errorf("claim dead letters: TTL %v: want at least 1ms", c.TTL)
	}
	cond, condArgs := "state = 'redriving' AND claimed_until <= "+t.now(), []any(nil)
	if len(change.From) > 0 {
		from, states := in("state", change.From)
		cond, condArgs = from+" AND state <> 'redriving' OR "+cond, states
	}
	err = t.transact(ctx, func(db DB) error {
		ids, err = t.change(ctx, db, change.IDs,
			// MySQL sets one after the other: the state comes last.
			"claimed_from = CASE WHEN state = 'redriving' THEN claimed_from ELSE state END, claim = ?, claimed_by = ?, claimed_until = "+t.now()+" + ?, state = 'redriving'",
			[]any{c.Token, c.Owner, c.TTL.Microseconds()}, cond, condArgs, change.Entry)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim dead letters: %w", err)
	}
	return ids, nil
}

// Settle implements deadletter.Table.
func (t *Table) Settle(ctx context.Context, c deadletter.Claim, change deadletter.Change) (ids []string, err error) {
	set, setArgs := "state = ?", []any{string(change.To)}
	if change.To == "" {
		set, setArgs = "state = claimed_from", nil
	}
	err = t.transact(ctx, func(db DB) error {
		ids, err = t.change(ctx, db, change.IDs, set+", claim = '', claimed_by = '', claimed_until = 0", setArgs,
			"claim = ? AND state = 'redriving'", []any{c.Token}, change.Entry)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("settle the redrive of dead letters: %w", err)
	}
	return ids, nil
}

// Move implements deadletter.Table.
func (t *Table) Move(ctx context.Context, change deadletter.Change) (ids []string, err error) {
	err = t.transact(ctx, func(db DB) error {
		ids, err = t.move(ctx, db, change)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("change dead letters to %s: %w", change.To, err)
	}
	return ids, nil
}

func (t *Table) move(ctx context.Context, db DB, change deadletter.Change) ([]string, error) {
	// A claim that has ended is no state to stay in.
	cond, args := "state = 'redriving' AND claimed_until <= "+t.now(), []any(nil)
	if len(change.From) > 0 {
		from, states := in("state", change.From)
		cond, args = from+" AND state <> 'redriving' OR "+cond, states
	}
	return t.change(ctx, db, change.IDs, "state = ?, claim = '', claimed_by = '', claimed_until = 0", []any{string(change.To)}, cond, args, change.Entry)
}

// Replace implements deadletter.Table.
func (t *Table) Replace(ctx context.Context, change deadletter.Change, row deadletter.Row) (done bool, err error) {
	err = t.transact(ctx, func(db DB) error {
		done = false
		moved, err := t.move(ctx, db, change)
		if err != nil || len(moved) == 0 {
			return err
		}
		if added, err := t.add(ctx, db, &row); err != nil || !added {
			return errors.Join(err, fmt.Errorf("insert dead letter %s: added %t", row.ID, added))
		}
		done = true
		return t.write(ctx, db, []string{row.ID}, change.Entry)
	})
	if err != nil {
		return false, fmt.Errorf("replace dead letter: %w", err)
	}
	return done, nil
}

// Purge implements deadletter.Table.
func (t *Table) Purge(ctx context.Context, ids []string, e deadletter.Entry) (n int, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	if len(ids) > deadletter.MaxLimit {
		return 0, fmt.Errorf("purge dead letters: %d ids: want at most %d", len(ids), deadletter.MaxLimit)
	}
	err = t.transact(ctx, func(db DB) error {
		n = 0
		token := newToken()
		one, idArgs := in("id", ids)
		marked, err := t.exec(ctx, db, "UPDATE "+t.letters+" SET op = ? WHERE "+one+" AND ("+t.unclaimed()+")", append([]any{token}, idArgs...)...)
		if err != nil || marked == 0 {
			return err
		}
		if _, err := t.exec(ctx, db, "DELETE FROM "+t.trail+" WHERE letter_id IN (SELECT id FROM "+t.letters+" WHERE "+one+" AND op = ?)", append(idArgs, token)...); err != nil {
			return err
		}
		deleted, err := t.exec(ctx, db, "DELETE FROM "+t.letters+" WHERE "+one+" AND op = ?", append(idArgs, token)...)
		if err != nil {
			return err
		}
		n = int(deleted)
		e.Detail = fmt.Sprintf("%d dead letters", n)
		return t.write(ctx, db, []string{""}, e)
	})
	if err != nil {
		return 0, fmt.Errorf("purge dead letters: %w", err)
	}
	return n, nil
}
