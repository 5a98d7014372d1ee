package outboxsql

import (
	"context"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/outbox"
)

// body is what the three tables of rows have in common, without the id.
const body = message + ", created_at"

const message = "topic, bucket, msg_key, uuid, metadata, payload"

// promoted is body of a delayed row that is due: how long it waits for the relay is counted from then on.
func (s *Source) promoted() string {
	latest := "greatest"
	if s.d == sqlite {
		latest = "max"
	}
	return message + ", " + latest + "(created_at, available_at)"
}

// Bury implements outbox.Source.
func (s *Source) Bury(ctx context.Context, owner string, lease outbox.Lease, b outbox.Burial) (held bool, err error) {
	if s.d == postgres {
		var n int64
		n, err = s.number(ctx, "WITH held AS (SELECT 1 FROM "+s.lease+" WHERE owner = ? AND bucket = ? AND epoch = ? FOR SHARE),"+
			" gone AS (DELETE FROM "+s.outbox+" WHERE topic = ? AND id = ? AND EXISTS (SELECT 1 FROM held) RETURNING *),"+
			" dead AS (INSERT INTO "+s.dead+" (id, "+body+", died_at, error_type, error, blocks)"+
			" SELECT id, "+body+", "+s.d.now()+", CAST(? AS text), CAST(? AS text), "+s.d.truth(b.Block)+" FROM gone)"+
			" SELECT count(*) FROM held", owner, lease.Bucket, lease.Epoch, b.Topic, b.ID, b.ErrorType, b.Error)
		held = n > 0
	} else {
		held, err = s.buryInTx(ctx, owner, lease, b)
	}
	if err != nil {
		return false, fmt.Errorf("move row %d of topic %q to %s: %w", b.ID, b.Topic, s.dead, err)
	}
	return held, nil
}

func (s *Source) buryInTx(ctx context.Context, owner string, lease outbox.Lease, b outbox.Burial) (held bool, err error) {
	err = s.tx(ctx, func(tx DB) error {
		held = false
		err := tx.Query(ctx, func(scan func(...any) error) (bool, error) {
			held = true
			return false, nil
		}, "SELECT 1 FROM "+s.lease+" WHERE owner = ? AND bucket = ? AND epoch = ?", owner, lease.Bucket, lease.Epoch)
		if err != nil || !held {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO "+s.dead+" (id, "+body+", died_at, error_type, error, blocks)"+
			" SELECT id, "+body+", "+s.d.now()+", ?, ?, "+s.d.truth(b.Block)+" FROM "+s.outbox+" WHERE id = ?", b.ErrorType, b.Error, b.ID)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "DELETE FROM "+s.outbox+" WHERE id = ?", b.ID)
		return err
	})
	return held, err
}

// Promote implements outbox.Source.
func (s *Source) Promote(ctx context.Context, limit int) (int, error) {
	var n int64
	var err error
	if s.d == postgres {
		// The clock is volatile: compared with it as it is, each row would be read. The array has the rows found by
		// their ids, whatever number of them the planner expects.
		n, err = s.exec(ctx, s.db, "WITH due AS (DELETE FROM "+s.delayed+" WHERE id = ANY (ARRAY(SELECT id FROM "+s.delayed+
			" WHERE available_at <= (SELECT "+s.d.now()+") ORDER BY available_at, id LIMIT ? FOR UPDATE SKIP LOCKED)) RETURNING *)"+
			" INSERT INTO "+s.outbox+" ("+body+") SELECT "+s.promoted()+" FROM due ORDER BY available_at, id", limit)
	} else {
		n, err = s.promoteInTx(ctx, limit)
	}
	if err != nil {
		return 0, fmt.Errorf("move due rows from %s: %w", s.delayed, err)
	}
	return int(n), nil
}

func (s *Source) promoteInTx(ctx context.Context, limit int) (n int64, err error) {
	due := " FROM " + s.delayed + " WHERE available_at <= " + s.d.now() + " ORDER BY available_at, id LIMIT ?"
	// Most often there is none, and nothing is to be locked.
	if n, err := s.number(ctx, "SELECT count(*) FROM (SELECT 1 AS one"+due+") c", 1); err != nil || n == 0 {
		return 0, err
	}
	lock := ""
	if s.d == mysql {
		lock = " FOR UPDATE SKIP LOCKED"
	}
	err = s.tx(ctx, func(tx DB) error {
		var ids []int64
		err := tx.Query(ctx, func(scan func(...any) error) (bool, error) {
			var id int64
			err := scan(&id)
			ids = append(ids, id)
			return true, err
		}, "SELECT id"+due+lock, limit)
		if err != nil || len(ids) == 0 {
			return err
		}
		in, args := s.d.in("id", ids)
		_, err = tx.Exec(ctx, "INSERT INTO "+s.outbox+" ("+body+") SELECT "+s.promoted()+" FROM "+s.delayed+" WHERE "+in+" ORDER BY available_at, id", args...)
		if err != nil {
			return err
		}
		query, args := s.d.deleteFrom(s.delayed, ids, "")
		n, err = tx.Exec(ctx, query, args...)
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// Dead implements outbox.Graveyard.
func (s *Source) Dead(ctx context.Context, after int64, limit int) ([]outbox.DeadRow, error) {
	var list []outbox.DeadRow
	var died int64
	var topic, errorType, text []byte
	var blocks bool
	reader := s.newReader(&topic, &died, &errorType, &text, &blocks)
	err := s.query(ctx, func(scan func(...any) error) (bool, error) {
		row, _, err := reader.read(scan)
		row.Topic = string(topic)
		list = append(list, outbox.DeadRow{Row: row, DiedAt: time.UnixMicro(died), ErrorType: string(errorType), Error: string(text), Blocks: blocks})
		return true, err
	}, "SELECT "+s.columns()+", topic, "+s.d.micros("died_at")+", error_type, error, blocks FROM "+s.dead+" WHERE id > ? ORDER BY id LIMIT ?", after, limit)
	if err != nil {
		return nil, fmt.Errorf("read dead rows from %s: %w", s.dead, err)
	}
	return list, nil
}

// DeadTopics implements outbox.Graveyard.
func (s *Source) DeadTopics(ctx context.Context, limit int) ([]outbox.DeadTopic, error) {
	var list []outbox.DeadTopic
	err := s.query(ctx, func(scan func(...any) error) (bool, error) {
		var topic []byte
		var d outbox.DeadTopic
		err := scan(&topic, &d.Rows, &d.Blocking)
		d.Name = string(topic)
		list = append(list, d)
		return true, err
	}, "SELECT topic, count(*), count(CASE WHEN blocks THEN 1 END) FROM "+s.dead+" GROUP BY topic ORDER BY topic LIMIT ?", limit)
	if err != nil {
		return nil, fmt.Errorf("count dead rows of %s: %w", s.dead, err)
	}
	return list, nil
}

// Revive implements outbox.Graveyard.
func (s *Source) Revive(ctx context.Context, id int64) (bool, error) {
	var n int64
	var err error
	if s.d == postgres {
		n, err = s.number(ctx, "WITH gone AS (DELETE FROM "+s.dead+" WHERE id = ? RETURNING *),"+
			" kept AS (INSERT INTO "+s.outbox+" (id, "+body+") SELECT id, "+body+" FROM gone WHERE blocks),"+
			" moved AS (INSERT INTO "+s.outbox+" ("+body+") SELECT "+body+" FROM gone WHERE NOT blocks)"+
			" SELECT count(*) FROM gone", id)
	} else {
		err = s.tx(ctx, func(tx DB) (err error) {
			if _, err = tx.Exec(ctx, "INSERT INTO "+s.outbox+" (id, "+body+") SELECT id, "+body+" FROM "+s.dead+" WHERE id = ? AND blocks", id); err != nil {
				return err
			}
			if _, err = tx.Exec(ctx, "INSERT INTO "+s.outbox+" ("+body+") SELECT "+body+" FROM "+s.dead+" WHERE id = ? AND NOT blocks", id); err != nil {
				return err
			}
			n, err = tx.Exec(ctx, "DELETE FROM "+s.dead+" WHERE id = ?", id)
			return err
		})
	}
	if err != nil {
		return false, fmt.Errorf("revive dead row %d: %w", id, err)
	}
	return n > 0, nil
}

// Discard implements outbox.Graveyard.
func (s *Source) Discard(ctx context.Context, id int64) (bool, error) {
	n, err := s.exec(ctx, s.db, "DELETE FROM "+s.dead+" WHERE id = ?", id)
	if err != nil {
		return false, fmt.Errorf("discard dead row %d: %w", id, err)
	}
	return n > 0, nil
}
