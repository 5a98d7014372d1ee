package outboxsql

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/headrace-go/headrace/outbox"
)

// InsertDelayed implements outbox.Delayer with one statement.
func (s *Source) InsertDelayed(ctx context.Context, r outbox.Row, d time.Duration) error {
	metadata, err := outbox.EncodeMetadata(r.Metadata)
	if err != nil {
		return err
	}
	var payload any // a nil []byte in an any is not NULL to every driver
	if r.Payload != nil {
		payload = r.Payload
	}
	_, err = s.exec(ctx, s.db, "INSERT INTO "+s.delayed+" ("+body+", available_at) VALUES (?, ?, ?, ?, ?, ?, "+s.d.now()+", "+s.d.later()+")",
		r.Topic, r.Bucket, r.Key, r.UUID, metadata, payload, d.Microseconds())
	return err
}

// insertAtOnce keeps a statement's arguments well below every database's limit.
const insertAtOnce = 500

// Insert implements outbox.Writer with statements of many rows, through exec of the caller's transaction.
func (s *Source) Insert(ctx context.Context, exec func(ctx context.Context, query string, args ...any) error, rows []outbox.Row) error {
	for len(rows) > 0 {
		// Rows of one statement go to one table.
		n, delayed := 1, !rows[0].AvailableAt.IsZero()
		for n < len(rows) && n < insertAtOnce && !rows[n].AvailableAt.IsZero() == delayed {
			n++
		}
		query, args, err := s.insert(rows[:n], delayed)
		if err != nil {
			return err
		}
		if err := exec(ctx, query, args...); err != nil {
			return fmt.Errorf("insert %d rows: %w", n, err)
		}
		rows = rows[n:]
	}
	return nil
}

func (s *Source) insert(rows []outbox.Row, delayed bool) (string, []any, error) {
	// One clock for all, and not the caller's.
	now := s.d.now()
	if s.d == postgres {
		now = "now()"
	}
	table, columns, values := s.outbox, body, "(?, ?, ?, ?, ?, ?, "+now+")"
	if delayed {
		table, columns, values = s.delayed, body+", available_at", "(?, ?, ?, ?, ?, ?, "+now+", ?)"
	}
	var b strings.Builder
	b.WriteString("INSERT INTO " + table + " (" + columns + ") VALUES ")
	args := make([]any, 0, 7*len(rows))
	for i := range rows {
		r := &rows[i]
		metadata, err := outbox.EncodeMetadata(r.Metadata)
		if err != nil {
			return "", nil, err
		}
		var payload any // a nil []byte in an any is not NULL to every driver
		if r.Payload != nil {
			payload = r.Payload
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(values)
		args = append(args, r.Topic, r.Bucket, r.Key, r.UUID, metadata, payload)
		if delayed {
			args = append(args, s.d.timeArg(r.AvailableAt))
		}
	}
	return s.d.text(b.String()), args, nil
}
