package pgxstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/internal/outboxsql"
	"github.com/headrace-go/headrace/stores/schema"
)

var (
	_ outbox.Writer[pgx.Tx] = (*Store)(nil)
	_ outbox.Delayer        = (*Outbox)(nil)
	_ outbox.Graveyard      = (*Outbox)(nil)
)

// Outbox is a store's outbox as a relay sees it: an [outbox.Source], an [outbox.Delayer] and an [outbox.Graveyard]. It is safe
// for concurrent use.
type Outbox struct{ *outboxsql.Source }

// Outbox returns the store's outbox, for [outbox.NewRelay]. Its statements run outside of the store's
// limit of transactions, on a connection of the pool each.
func (s *Store) Outbox() *Outbox { return &Outbox{outboxsql.New(s.names, pool{s.pool}, nil)} }

// InsertOutbox implements [outbox.Writer] with one statement, and so in one round trip; in a transaction of
// Once it costs none, for the rows go with the COMMIT. Users call outbox.Add.
func (s *Store) InsertOutbox(ctx context.Context, tx pgx.Tx, rows []outbox.Row) error {
	if t, ok := tx.(*transaction); ok && t.store == s {
		if held, err := t.hold(ctx, rows); held || err != nil {
			return err
		}
	}
	return s.insertRows(ctx, tx, rows)
}

// execer is what statements go to: a transaction, or a batch.
type execer interface {
	Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error)
}

func (s *Store) insertRows(ctx context.Context, tx execer, rows []outbox.Row) error {
	for len(rows) > 0 {
		// Rows of one statement go to one table.
		n, delayed := 1, !rows[0].AvailableAt.IsZero()
		for n < len(rows) && !rows[n].AvailableAt.IsZero() == delayed {
			n++
		}
		if err := s.insertOutbox(ctx, tx, rows[:n], delayed); err != nil {
			return fmt.Errorf("insert %d rows: %w", n, err)
		}
		rows = rows[n:]
	}
	return nil
}

func (s *Store) insertOutbox(ctx context.Context, tx execer, rows []outbox.Row, delayed bool) error {
	if len(rows) == 1 { // no arrays
		r := &rows[0]
		metadata, err := outbox.EncodeMetadata(r.Metadata)
		if err != nil {
			return err
		}
		if delayed {
			_, err = tx.Exec(ctx, s.sql.addOneDelayed, r.Topic, r.Bucket, r.Key, r.UUID, metadata, r.Payload, r.AvailableAt)
		} else {
			_, err = tx.Exec(ctx, s.sql.addOne, r.Topic, r.Bucket, r.Key, r.UUID, metadata, r.Payload)
		}
		return err
	}
	topics, keys, uuids, metadatas := make([]string, len(rows)), make([]string, len(rows)), make([]string, len(rows)), make([]string, len(rows))
	buckets, payloads, times := make([]int16, len(rows)), make([][]byte, len(rows)), []time.Time(nil)
	for i := range rows {
		r := &rows[i]
		metadata, err := outbox.EncodeMetadata(r.Metadata)
		if err != nil {
			return err
		}
		topics[i], buckets[i], keys[i], uuids[i], metadatas[i], payloads[i] = r.Topic, int16(r.Bucket), r.Key, r.UUID, metadata, r.Payload
		if delayed {
			times = append(times, r.AvailableAt)
		}
	}
	if delayed {
		_, err := tx.Exec(ctx, s.sql.addManyDelayed, topics, buckets, keys, uuids, metadatas, payloads, times)
		return err
	}
	_, err := tx.Exec(ctx, s.sql.addMany, topics, buckets, keys, uuids, metadatas, payloads)
	return err
}

// outboxStatements add rows; the database gives ids in the order of the arrays.
type outboxStatements struct {
	addOne, addMany               string // topic, bucket, key, uuid, metadata, payload
	addOneDelayed, addManyDelayed string // and available at
}

func newOutboxStatements(n schema.Names) outboxStatements {
	const columns = "topic, bucket, msg_key, uuid, metadata, payload"
	outbox, delayed := n.Table("outbox"), n.Table("outbox_delayed")
	return outboxStatements{
		addOne: "INSERT INTO " + outbox + " (" + columns + ") VALUES ($1, $2, $3, $4, $5, $6)",
		addMany: "INSERT INTO " + outbox + " (" + columns + ") SELECT t, b, k, u, m, p FROM" +
			" unnest($1::text[], $2::smallint[], $3::text[], $4::text[], $5::text[], $6::bytea[]) WITH ORDINALITY AS r (t, b, k, u, m, p, n) ORDER BY n",
		addOneDelayed: "INSERT INTO " + delayed + " (" + columns + ", available_at) VALUES ($1, $2, $3, $4, $5, $6, $7)",
		addManyDelayed: "INSERT INTO " + delayed + " (" + columns + ", available_at) SELECT t, b, k, u, m, p, a FROM" +
			" unnest($1::text[], $2::smallint[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::timestamptz[]) WITH ORDINALITY AS r (t, b, k, u, m, p, a, n) ORDER BY n",
	}
}

// pool is an outboxsql.DB: each statement is a transaction by itself.
type pool struct{ *pgxpool.Pool }

func (p pool) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := p.Pool.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (p pool) Query(ctx context.Context, row func(scan func(...any) error) (bool, error), query string, args ...any) error {
	rows, err := p.Pool.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		more, err := row(rows.Scan)
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	rows.Close()
	return rows.Err()
}
