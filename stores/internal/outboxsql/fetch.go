package outboxsql

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headrace-go/headrace/outbox"
)

// columns are those of a row, without its topic, as rowReader reads them.
func (s *Source) columns() string {
	if s.d == postgres {
		return "id, bucket, msg_key, uuid, metadata, payload, created_at"
	}
	return "id, bucket, msg_key, uuid, metadata, payload, CASE WHEN payload IS NULL THEN 0 ELSE 1 END, " + s.d.micros("created_at")
}

// rowReader reads rows, one after another.
type rowReader struct {
	d          dialect
	row        outbox.Row
	metadata   []byte
	hasPayload int64
	created    int64
	dest       []any
}

// newReader reads the columns, and more behind them.
func (s *Source) newReader(more ...any) *rowReader {
	r := &rowReader{d: s.d}
	r.dest = []any{&r.row.ID, &r.row.Bucket, &r.row.Key, &r.row.UUID, &r.metadata, &r.row.Payload}
	if s.d == postgres {
		r.dest = append(r.dest, &r.row.CreatedAt)
	} else {
		r.dest = append(r.dest, &r.hasPayload, &r.created)
	}
	r.dest = append(r.dest, more...)
	return r
}

// read returns a row, without its topic, and the size that Query.Bytes counts.
func (r *rowReader) read(scan func(...any) error) (row outbox.Row, size int, err error) {
	r.row.Payload = nil
	if err := scan(r.dest...); err != nil {
		return row, 0, err
	}
	row = r.row
	if r.d != postgres {
		if r.hasPayload == 1 && row.Payload == nil {
			row.Payload = []byte{} // the SQLite driver takes an empty one for NULL
		}
		row.CreatedAt = time.UnixMicro(r.created)
	}
	metadata := r.metadata
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
		if err = s.raise(ctx, q.Topic); err == nil {
			page, err = s.fetchCut(ctx, q)
		}
		s.low.failed(err)
		if n := len(page.Rows); err == nil && n > 0 {
			s.low.read(q.Topic, page.Rows[n-1].ID)
		}
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
	filter, filterArgs := s.filter(q)
	if s.d != postgres {
		return " FROM " + s.outbox + " WHERE topic = ?" + filter + " ORDER BY id LIMIT ?", slices.Concat([]any{q.Topic}, filterArgs, []any{q.Rows})
	}
	// Postgres must walk the primary key until it has enough, whatever its statistics say: those of a
	// queue are always out of date, and then it sorts the whole topic for each page. An equality it
	// takes for selective; for a comparison of rows it assumes a large part of the table, and for <>
	// nearly all of it.
	low, stuck := s.low.at(q.Topic)
	from := " FROM " + s.outbox + " WHERE (topic, id) >= (?, ?) AND (topic, id) <= (?, 9223372036854775807)" + filter + " ORDER BY topic, id LIMIT ?"
	args := slices.Concat([]any{q.Topic, low, q.Topic}, filterArgs, []any{q.Rows})
	if len(stuck) > 0 {
		// Each by itself: of an array Postgres may make a filter on all of the topic.
		from = " FROM ((SELECT o.* FROM unnest(" + bigints + ") x (id) CROSS JOIN LATERAL (SELECT * FROM " + s.outbox + " WHERE topic = ? AND id = x.id" + filter +
			" LIMIT 1) o ORDER BY o.id LIMIT ?) UNION ALL (SELECT *" + from + ")) b ORDER BY topic, id LIMIT ?"
		args = slices.Concat([]any{"{" + digits(stuck) + "}", q.Topic}, filterArgs, []any{q.Rows}, args, []any{q.Rows})
	}
	return from, args
}

// filter are q's conditions besides the topic.
func (s *Source) filter(q outbox.Query) (from string, args []any) {
	if s.d == postgres {
		var mask uint64
		for _, b := range q.Buckets {
			mask |= 1 << b
		}
		from = " AND (CAST(1 AS bigint) << bucket) & ? <> 0"
		args = append(args, int64(mask))
	} else {
		buckets := make([]int64, len(q.Buckets))
		for i, b := range q.Buckets {
			buckets[i] = int64(b)
		}
		in, _ := s.d.in("bucket", buckets)
		from = " AND " + in
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
	return from, args
}

// fetchLazily stops reading when it has enough: nothing is sent that is not read.
func (s *Source) fetchLazily(ctx context.Context, q outbox.Query) (page outbox.Page, err error) {
	from, args := s.where(q)
	bytes, reader := 0, s.newReader()
	err = s.query(ctx, func(scan func(...any) error) (bool, error) {
		row, size, err := reader.read(scan)
		if err != nil {
			return false, err
		}
		row.Topic = q.Topic
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
	bytes, reader := 0, s.newReader()
	err = s.query(ctx, func(scan func(...any) error) (bool, error) {
		row, size, err := reader.read(scan)
		row.Topic = q.Topic
		page.Rows = append(page.Rows, row)
		bytes += size
		return true, err
	}, "SELECT "+s.columns()+" FROM (SELECT *, sum(size) OVER (ORDER BY topic, id ROWS UNBOUNDED PRECEDING) - size AS before"+
		" FROM (SELECT *, octet_length(metadata) + coalesce(octet_length(payload), 0) AS size"+from+") p) c WHERE before < ? ORDER BY topic, id",
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
	reader := s.newReader()
	err = s.query(ctx, func(scan func(...any) error) (bool, error) {
		row, _, err := reader.read(scan)
		row.Topic = q.Topic
		page.Rows = append(page.Rows, row)
		return true, err
	}, "SELECT "+s.columns()+" FROM "+s.outbox+" FORCE INDEX (PRIMARY) WHERE "+in+" ORDER BY id")
	page.More = len(ids) >= q.Rows || bytes >= q.Bytes
	return page, err
}
