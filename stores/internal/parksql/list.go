package parksql

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
)

// Keys implements parking.Ledger.
func (l *Ledger) Keys(ctx context.Context, consumer, after string, limit int) ([]parking.Key, error) {
	var list []parking.Key
	err := l.query(ctx, l.DB, func(scan func(...any) error) (bool, error) {
		k := parking.Key{Consumer: consumer}
		var state string
		var parked, failed, released, until int64
		err := scan(&k.Name, &state, &k.Messages, &k.Failures, &parked, &failed, &released, &until,
			&k.FirstErrorType, &k.FirstError, &k.LastErrorType, &k.LastError)
		k.State = parking.State(state)
		k.ParkedAt, k.FailedAt, k.ReleasedAt, k.DelayedUntil = timeOf(parked), timeOf(failed), timeOf(released), timeOf(until)
		list = append(list, k)
		return true, err
	}, "SELECT msg_key, state, messages, failures, parked_at, failed_at, released_at,"+
		" CASE WHEN state = 'released' AND owner = '' THEN lease_until ELSE 0 END, first_type, first_error, last_type, last_error FROM "+
		l.keys+" WHERE consumer = ? AND msg_key > ? ORDER BY msg_key LIMIT ?", consumer, after, limit)
	if err != nil {
		return nil, fmt.Errorf("parking: list the keys of %q: %w", consumer, l.Explain(ctx, err))
	}
	return list, nil
}

// Messages implements parking.Ledger.
func (l *Ledger) Messages(ctx context.Context, consumer, key string, after int64, limit int) ([]parking.Message, error) {
	list, err := l.messages(ctx, l.DB, consumer, key, after, limit)
	return list, l.failed(ctx, "list the messages of", consumer, key, err)
}

func (l *Ledger) messages(ctx context.Context, db DB, consumer, key string, after int64, limit int) ([]parking.Message, error) {
	var list []parking.Message
	err := l.query(ctx, db, func(scan func(...any) error) (bool, error) {
		m := parking.Message{Consumer: consumer, Key: key}
		var at int64
		var letter string
		var document, payload []byte
		var hasPayload bool
		if err := scan(&m.Seq, &m.ID, &at, &letter, &document, &payload, &hasPayload); err != nil {
			return false, err
		}
		m.ParkedAt = timeOf(at)
		var err error
		m.Record, err = poison.ParseDocument(letter, document, notNil(payload, hasPayload))
		list = append(list, m)
		return true, err
	}, "SELECT seq, id, parked_at, dead_letter, record, payload, payload IS NOT NULL FROM "+l.msgs+ofKey+" AND seq > ? ORDER BY seq LIMIT ?",
		consumer, key, after, limit)
	return list, err
}

// Find implements parking.Ledger.
func (l *Ledger) Find(ctx context.Context, consumer, id string) (key string, seq int64, found bool, err error) {
	found, err = l.one(ctx, l.DB, "SELECT msg_key, seq FROM "+l.msgs+" WHERE consumer = ? AND id = ?", []any{consumer, id}, []any{&key, &seq})
	if err != nil {
		return "", 0, false, fmt.Errorf("parking: find message %q of %q: %w", id, consumer, l.Explain(ctx, err))
	}
	return key, seq, found, nil
}

// Count implements parking.Ledger.
func (l *Ledger) Count(ctx context.Context, consumer string) (parking.Count, error) {
	var c parking.Count
	var oldest int64
	_, err := l.one(ctx, l.DB, "SELECT count(*), CAST(coalesce(sum(CASE WHEN state = 'released' THEN 1 ELSE 0 END), 0) AS "+l.integer()+"),"+
		" CAST(coalesce(sum(CASE WHEN state = 'released' AND owner = '' AND lease_until > "+l.now+" THEN 1 ELSE 0 END), 0) AS "+l.integer()+"),"+
		" CAST(coalesce(sum(messages), 0) AS "+l.integer()+"), coalesce(min(parked_at), 0) FROM "+l.keys+" WHERE consumer = ?",
		[]any{consumer}, []any{&c.Keys, &c.Released, &c.Delayed, &c.Messages, &oldest})
	if err != nil {
		return parking.Count{}, fmt.Errorf("parking: count what is parked of %q: %w", consumer, l.Explain(ctx, err))
	}
	c.Oldest = timeOf(oldest)
	return c, nil
}

// Audit implements parking.Ledger.
func (l *Ledger) Audit(ctx context.Context, consumer string, after int64, limit int) ([]parking.Entry, error) {
	var list []parking.Entry
	err := l.query(ctx, l.DB, func(scan func(...any) error) (bool, error) {
		e := parking.Entry{Consumer: consumer}
		m := parking.Message{Consumer: consumer}
		var at int64
		var action, letter string
		var document, payload []byte
		var hasPayload bool
		if err := scan(&e.N, &at, &action, &e.Actor, &e.Reason.Reason, &e.Key, &m.Seq, &m.ID, &letter, &document, &payload, &hasPayload); err != nil {
			return false, err
		}
		e.At, e.Action = timeOf(at), parking.Action(action)
		var err error
		if document != nil {
			m.Key = e.Key
			m.Record, err = poison.ParseDocument(letter, document, notNil(payload, hasPayload))
			e.Skipped = &m
		}
		list = append(list, e)
		return true, err
	}, "SELECT n, at, action, actor, reason, msg_key, seq, id, dead_letter, record, payload, payload IS NOT NULL FROM "+l.audit+
		" WHERE consumer = ? AND n > ? ORDER BY n LIMIT ?", consumer, after, limit)
	if err != nil {
		return nil, fmt.Errorf("parking: read the audit of %q: %w", consumer, l.Explain(ctx, err))
	}
	return list, nil
}

func microsOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func timeOf(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}

// notNil makes an empty payload of what a driver makes of one.
func notNil(payload []byte, there bool) []byte {
	if there && payload == nil {
		return []byte{}
	}
	return payload
}

// payloadOf keeps nil and empty apart: as an argument a nil slice is not NULL with every driver.
func payloadOf(payload []byte) any {
	if payload == nil {
		return nil
	}
	return payload
}

// text makes s what every text column keeps.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", " ")
}
