package parksql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/stores/schema"
)

// Release implements parking.Ledger.
func (l *Ledger) Release(ctx context.Context, consumer, key string, why parking.Reason) (bool, error) {
	there := false
	err := l.operate(ctx, why, func(db DB) error {
		state, _, found, err := l.lockKey(ctx, db, consumer, key)
		there = found
		switch {
		case err != nil || !found:
			return err
		case state == parking.Released:
			return l.hurry(ctx, db, consumer, key, why)
		}
		return l.release(ctx, db, consumer, key, why)
	})
	return there && err == nil, l.failed(ctx, "release", consumer, key, err)
}

func (l *Ledger) release(ctx context.Context, db DB, consumer, key string, why parking.Reason) error {
	if _, err := l.exec(ctx, db, "UPDATE "+l.keys+" SET state = 'released', released_at = "+l.now+", owner = '', lease_until = 0"+ofKey, consumer, key); err != nil {
		return err
	}
	return l.note(ctx, db, parking.ActionRelease, why, consumer, key, nil)
}

// hurry ends the delay of a key, if it has one.
func (l *Ledger) hurry(ctx context.Context, db DB, consumer, key string, why parking.Reason) error {
	n, err := l.exec(ctx, db, "UPDATE "+l.keys+" SET lease_until = 0"+ofKey+" AND owner = '' AND lease_until > "+l.now, consumer, key)
	if err != nil || n == 0 {
		return err
	}
	return l.note(ctx, db, parking.ActionRelease, why, consumer, key, nil)
}

// pageSize bounds the keys of one transaction of ReleaseAll.
const pageSize = 100

// ReleaseAll implements parking.Ledger, page by page, in the order of names.
func (l *Ledger) ReleaseAll(ctx context.Context, consumer string, why parking.Reason) (int, error) {
	if err := why.Validate(); err != nil {
		return 0, err
	}
	total, after := 0, ""
	for {
		// Without a lock: a range of them would hold up other keys. releasePage looks again.
		page, err := l.names(ctx, l.DB, "SELECT msg_key FROM "+l.keys+" WHERE consumer = ? AND msg_key > ? AND state = 'parked' ORDER BY msg_key LIMIT ?",
			consumer, after, pageSize)
		if err == nil {
			var n int
			n, err = l.releasePage(ctx, consumer, page, why)
			total += n
		}
		if err != nil {
			return total, fmt.Errorf("parking: release all keys of %q after %q: %w", consumer, after, l.Explain(ctx, err))
		}
		if len(page) < pageSize {
			return total, nil
		}
		after = page[len(page)-1]
	}
}

// releasePage releases those of names that are parked, in one transaction.
func (l *Ledger) releasePage(ctx context.Context, consumer string, names []string, why parking.Reason) (n int, err error) {
	err = l.Tx(ctx, func(db DB) error {
		n = 0
		for _, key := range names {
			state, _, _, err := l.lockKey(ctx, db, consumer, key)
			if err != nil {
				return err
			}
			if state != parking.Parked {
				continue
			}
			if err := l.release(ctx, db, consumer, key, why); err != nil {
				return err
			}
			n++
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// Withhold implements parking.Ledger.
func (l *Ledger) Withhold(ctx context.Context, consumer, key string, why parking.Reason) (bool, error) {
	was := false
	err := l.operate(ctx, why, func(db DB) error {
		state, _, _, err := l.lockKey(ctx, db, consumer, key)
		if was = state == parking.Released; err != nil || !was {
			return err
		}
		if _, err := l.exec(ctx, db, "UPDATE "+l.keys+" SET state = 'parked', owner = '', lease_until = 0"+ofKey, consumer, key); err != nil {
			return err
		}
		return l.note(ctx, db, parking.ActionWithhold, why, consumer, key, nil)
	})
	return was && err == nil, l.failed(ctx, "withhold", consumer, key, err)
}

// Skip implements parking.Ledger.
func (l *Ledger) Skip(ctx context.Context, consumer, key string, seq int64, why parking.Reason) (bool, error) {
	there := false
	var id string
	// Before the transaction: on SQLite one that reads first may not be able to write.
	found, err := l.one(ctx, l.DB, "SELECT id FROM "+l.msgs+ofKey+" AND seq = ?", []any{consumer, key, seq}, []any{&id})
	if err != nil || !found {
		return false, errors.Join(why.Validate(), l.failed(ctx, fmt.Sprintf("skip message %d of", seq), consumer, key, err))
	}
	err = l.operate(ctx, why, func(db DB) error {
		there = false
		if err := l.renew(ctx, db, consumer, id); err != nil {
			return err
		}
		_, messages, found, err := l.lockKey(ctx, db, consumer, key)
		if err != nil || !found {
			return err
		}
		list, err := l.messages(ctx, db, consumer, key, seq-1, 1)
		if err != nil || len(list) == 0 || list[0].Seq != seq || list[0].ID != id {
			return err
		}
		if there, err = l.remove(ctx, db, list[0]); err != nil || !there {
			return err
		}
		if err := l.shrink(ctx, db, consumer, key, messages); err != nil {
			return err
		}
		return l.note(ctx, db, parking.ActionSkip, why, consumer, key, &list[0])
	})
	return there && err == nil, l.failed(ctx, fmt.Sprintf("skip message %d of", seq), consumer, key, err)
}

func (l *Ledger) operate(ctx context.Context, why parking.Reason, f func(DB) error) error {
	if err := why.Validate(); err != nil {
		return err
	}
	return l.Tx(ctx, f)
}

// note writes a line of the audit.
func (l *Ledger) note(ctx context.Context, db DB, action parking.Action, why parking.Reason, consumer, key string, m *parking.Message) error {
	var seq int64
	var id, letter string
	var document, payload any
	if m != nil {
		encoded, err := m.Record.MarshalDocument()
		if err != nil {
			return err
		}
		seq, id, letter, document, payload = m.Seq, m.ID, text(m.Record.ID), encoded, payloadOf(m.Record.Payload)
	}
	_, err := l.exec(ctx, db, "INSERT INTO "+l.audit+" (at, action, actor, reason, consumer, msg_key, seq, id, dead_letter, record, payload)"+
		" VALUES ("+l.now+", ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		string(action), why.Actor, why.Reason, consumer, key, seq, id, letter, document, payload)
	return err
}

// PruneAudit implements parking.Ledger.
func (l *Ledger) PruneAudit(ctx context.Context, before time.Time, limit int) (int, error) {
	if limit < 1 {
		return 0, fmt.Errorf("parking: prune the audit: limit %d: want at least 1", limit)
	}
	query := "DELETE FROM " + l.audit + " WHERE n IN (SELECT n FROM " + l.audit + " WHERE at < ? ORDER BY at LIMIT ?)"
	if l.dialect == schema.MySQL {
		query = "DELETE FROM " + l.audit + " WHERE at < ? ORDER BY at LIMIT ?"
	}
	n, err := l.exec(ctx, l.DB, query, before.UnixMicro(), limit)
	if err != nil {
		return 0, fmt.Errorf("parking: prune the audit before %s: %w", before.Format(time.RFC3339), l.Explain(ctx, err))
	}
	return int(n), nil
}
