package outboxsql

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/headrace-go/headrace/outbox"
)

// columns are those of a row, as scanRow reads them.
func (s *Source) columns() string {
	return "id, bucket, topic, msg_key, uuid, metadata, payload, " +
		"CASE WHEN payload IS NULL THEN 0 ELSE 1 END, " + s.d.micros("created_at")
}

// scanRow reads the columns, and others behind them. It returns the size that Query.Bytes counts.
func scanRow(scan func(...any) error, more ...any) (row outbox.Row, size int, err error) {
	var topic, key, uuid, metadata []byte
	var created, hasPayload int64
	dest := [13]any{&row.ID, &row.Bucket, &topic, &key, &uuid, &metadata, &row.Payload, &hasPayload, &created}
	if err := scan(append(dest[:9], more...)...); err != nil {
		return row, 0, err
	}
	if hasPayload == 1 && row.Payload == nil {
		row.Payload = []byte{} // the SQLite driver takes an empty one for NULL
	}
	row.Topic, row.Key, row.UUID = string(topic), string(key), string(uuid)
	row.CreatedAt = time.UnixMicro(created)
	row.Metadata, err = outbox.DecodeMetadata(metadata)
	if err != nil {
		return row, 0, fmt.Errorf("row %d: %w", row.ID, err)
	}
	return row, len(metadata) + len(row.Payload), nil
}

// Fetch implements outbox.Source.
func (s *Source) Fetch(ctx context.Context, q outbox.Query) (outbox.Page, error) {
	var page outbox.Page
	if len(q.Buckets) == 0 || q.Rows <= 0 {
		return page, nil
	}
	var err error
	switch s.d {
	case postgres:
		page, err = s.fetchCut(ctx, q)
	case mysql:
		page, err = s.fetchMeasured(ctx, q)
	default:
		page, err = s.fetchLazily(ctx, q)
	}
	if err != nil {
		return outbox.Page{}, fmt.Errorf("read rows of topic %q from %s: %w", q.Topic, s.outbox, err)
	}
	return page, nil
}

// where selects q's rows in order.
func (s *Source) where(q outbox.Query) (string, []any) {
	from := " FROM " + s.outbox + " WHERE "
	order := " ORDER BY id LIMIT ?"
	var args []any
	if s.d == postgres {
		// Postgres must walk the primary key until it has enough, whatever its statistics say: those of a
		// queue are always out of date, and then it sorts the whole topic for each page. An equality it
		// takes for selective; for a comparison of rows it assumes a large part of the table, and for <>
		// nearly all of it.
		var mask uint64
		for _, b := range q.Buckets {
			mask |= 1 << b
		}
		from += "(topic, id) >= (?, 0) AND (topic, id) <= (?, 9223372036854775807) AND (CAST(1 AS bigint) << bucket) & ? <> 0"
		order = " ORDER BY topic, id LIMIT ?"
		args = append(args, q.Topic, q.Topic, int64(mask))
	} else {
		buckets := make([]int64, len(q.Buckets))
		for i, b := range q.Buckets {
			buckets[i] = int64(b)
		}
		in, _ := s.d.in("bucket", buckets)
		from += "topic = ? AND " + in
		args = append(args, q.Topic)
	}
	from += " AND msg_key NOT IN (SELECT msg_key FROM " + s.dead + " WHERE blocks AND topic = ?)"
	args = append(args, q.Topic)
	if len(q.NotKeys) > 0 {
		from += " AND msg_key NOT IN (?" + strings.Repeat(", ?", len(q.NotKeys)-1) + ")"
		for _, k := range q.NotKeys {
			args = append(args, k)
		}
	}
	if len(q.NotIDs) > 0 {
		if s.d == postgres {
			// Hashed, and read from the text once.
			from += " AND (id IN (SELECT unnest(CAST(CAST(? AS text) AS bigint[])))) IS NOT TRUE"
			args = append(args, "{"+digits(q.NotIDs)+"}")
		} else {
			in, _ := s.d.in("id", q.NotIDs)
			from += " AND NOT (" + in + ")"
		}
	}
	return from + order, append(args, q.Rows)
}

// fetchLazily stops reading when it has enough: nothing is sent that is not read.
func (s *Source) fetchLazily(ctx context.Context, q outbox.Query) (page outbox.Page, err error) {
	from, args := s.where(q)
	bytes := 0
	err = s.query(ctx, func(scan func(...any) error) (bool, error) {
		row, size, err := scanRow(scan)
		if err != nil {
			return false, err
		}
		page.Rows = append(page.Rows, row)
		bytes += size
		return bytes < q.Bytes, nil
	}, "SELECT "+s.columns()+from, args...)
	page.More = len(page.Rows) >= q.Rows || bytes >= q.Bytes
	return page, err
}

// fetchCut lets the server cut the answer by the running total of the sizes. A large payload is not read
// for that.
func (s *Source) fetchCut(ctx context.Context, q outbox.Query) (page outbox.Page, err error) {
	from, args := s.where(q)
	bytes := 0
	err = s.query(ctx, func(scan func(...any) error) (bool, error) {
		row, size, err := scanRow(scan)
		page.Rows = append(page.Rows, row)
		bytes += size
		return true, err
	}, "SELECT "+s.columns()+" FROM (SELECT *, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - size AS before"+
		" FROM (SELECT *, octet_length(metadata) + coalesce(octet_length(payload), 0) AS size"+from+") p) c WHERE before < ? ORDER BY id",
		append(args, q.Bytes)...)
	page.More = len(page.Rows) >= q.Rows || bytes >= q.Bytes
	return page, err
}

// fetchMeasured first asks how large the rows are, since a server sends all that was asked for, and then
// for as many as may be. Most often that is all of them.
func (s *Source) fetchMeasured(ctx context.Context, q outbox.Query) (page outbox.Page, err error) {
	from, args := s.where(q)
	var ids []int64
	bytes := 0
	err = s.query(ctx, func(scan func(...any) error) (bool, error) {
		var id int64
		var size int
		if err := scan(&id, &size); err != nil {
			return false, err
		}
		if bytes < q.Bytes {
			ids = append(ids, id)
		}
		bytes += size
		return true, nil
	}, "SELECT id, octet_length(metadata) + coalesce(octet_length(payload), 0)"+from, args...)
	if err != nil || len(ids) == 0 {
		return outbox.Page{}, err
	}
	in, _ := s.d.in("id", ids)
	page.Rows = make([]outbox.Row, 0, len(ids))
	err = s.query(ctx, func(scan func(...any) error) (bool, error) {
		row, _, err := scanRow(scan)
		page.Rows = append(page.Rows, row)
		return true, err
	}, "SELECT "+s.columns()+" FROM "+s.outbox+" FORCE INDEX (PRIMARY) WHERE "+in+" ORDER BY id")
	page.More = len(ids) >= q.Rows || bytes >= q.Bytes
	return page, err
}
