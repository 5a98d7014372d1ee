package pgxstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// maxQueued is how many statements wait at most, and their texts and arguments have at most maxHeldBytes; then they are sent.
const maxQueued = 1000

// Queue executes a statement of a handler that does not need its result. In a transaction of Once or of a group it waits, and goes to the
// server in the flight of the COMMIT, or ahead of whatever else is sent of the transaction: a handler of one such statement takes two round
// trips instead of three, and all handlers of an [inbox.Grouped] together two as well. Order is kept: among the statements of Queue and
// those of tx, for all handlers of the transaction, and the rows of outbox.Add come last.
//
// What the statement fails with is an error of the handler, which Once returns; or that of what is sent next, and then Once fails too, whatever
// becomes of that error. How many rows it changed is not told. sql is one statement; args are kept until it is sent, and may not be changed.
// In the flight of the COMMIT it does not end with ctx, but after 15 s: a statement that may wait for a lock for longer is better
// executed by tx.
//
// It is tx.Exec in any other transaction, once the handlers of the transaction have made a savepoint or added more rows to the outbox than
// wait for the COMMIT, and for SAVEPOINT, COMMIT and their like. Otherwise it blocks only when 1,000 statements, or 1 MiB of them, wait: then it
// sends them, as tx.Exec does, so read a query's rows to their end before. What goes past tx, by tx.Prepare, tx.Conn or tx.LargeObjects, goes past what
// waits as well. pgx prepares all that waits before it sends any: a statement cannot use what one before it creates.
func Queue(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	t, ok := tx.(*transaction)
	if !ok || t.direct || t.conn == nil || isControl(sql) {
		_, err := tx.Exec(ctx, sql, args...)
		return err
	}
	t.queued = append(t.queued, statement{sql, args})
	t.queuedBytes += sizeOf(sql, args)
	if len(t.queued) < maxQueued && t.queuedBytes < maxHeldBytes {
		return nil
	}
	return t.sendQueued(ctx)
}

// sizeOf counts what can be large.
func sizeOf(sql string, args []any) int {
	size := len(sql)
	for _, arg := range args {
		switch v := arg.(type) {
		case string:
			size += len(v)
		case []byte:
			size += len(v)
		}
	}
	return size
}

// isControl tells a statement that begins, ends or divides a transaction.
func isControl(sql string) bool {
	switch firstWord(sql) {
	case "begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release", "prepare":
		return true
	}
	return false
}

// isSavepoint tells a savepoint that is made as text.
func isSavepoint(sql string) bool { return firstWord(sql) == "savepoint" }

// firstWord is the first word of a statement in lower case, behind space and comments.
func firstWord(sql string) string {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n\f\v;")
		var found bool
		switch {
		case strings.HasPrefix(sql, "--"):
			_, sql, found = strings.Cut(sql, "\n")
		case strings.HasPrefix(sql, "/*"):
			sql, found = afterComment(sql)
		default:
			end := strings.IndexFunc(sql, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') })
			if end < 0 {
				end = len(sql)
			}
			return strings.ToLower(sql[:end])
		}
		if !found {
			return ""
		}
	}
}

// afterComment is what follows a comment, in which there can be others.
func afterComment(sql string) (rest string, found bool) {
	depth := 0
	for i := 0; i+1 < len(sql); i++ {
		switch sql[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return sql[i+1:], true
			}
		}
	}
	return "", false
}

// statement is one that waits.
type statement struct {
	sql  string
	args []any
}

// queuedError is what a statement of the handler has failed with in the flight of the COMMIT.
type queuedError struct{ err error }

func (e *queuedError) Error() string { return fmt.Sprintf("a queued statement: %v", e.err) }
func (e *queuedError) Unwrap() error { return e.err }

// batch takes what waits, in its order.
func (t *transaction) batch() *pgx.Batch {
	var b pgx.Batch
	for _, s := range t.queued {
		b.Queue(s.sql, s.args...)
	}
	t.queued, t.queuedBytes = nil, 0
	return &b
}

// sendQueued executes what waits, in one flight. After an error the transaction cannot be committed: what waited is gone, even if nothing
// of it has reached the server.
func (t *transaction) sendQueued(ctx context.Context) error {
	if t.lost != nil || len(t.queued) == 0 {
		return t.lost
	}
	if err := t.Tx.SendBatch(ctx, t.batch()).Close(); err != nil {
		t.lost = &queuedError{err}
	}
	return t.lost
}

// Query is that of the transaction, as all of these are, behind what waits.
func (t *transaction) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.sendQueued(ctx); err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).Query()
	}
	return t.Tx.Query(ctx, sql, args...)
}

func (t *transaction) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.sendQueued(ctx); err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).QueryRow()
	}
	return t.Tx.QueryRow(ctx, sql, args...)
}

func (t *transaction) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.sendQueued(ctx); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return t.Tx.SendBatch(ctx, b)
}

func (t *transaction) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.sendQueued(ctx); err != nil {
		return 0, err
	}
	return t.Tx.CopyFrom(ctx, table, columns, rows)
}

// Exec looks for a savepoint that is made as text.
func (t *transaction) Exec(ctx context.Context, sql string, arguments ...any) (tag pgconn.CommandTag, err error) {
	if isSavepoint(sql) {
		err = t.sendHeld(ctx)
	} else {
		err = t.sendQueued(ctx)
	}
	if err != nil {
		return tag, err
	}
	return t.Tx.Exec(ctx, sql, arguments...)
}
