// Package parksql is parking.Ledger on any SQL database that stores/* supports. It knows no driver; a store
// lends it a [DB].
//
// Whoever changes what a key holds locks the key's row first, by an UPDATE or by FOR UPDATE, and decides by
// what it reads under that lock: how many messages there are is in the row. SQLite has one writer at a time. Claims come
// before that lock, as those of the inbox do: a redelivery has claimed its message when it waits for the row.
package parksql

import (
	"context"
	"fmt"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/stores/internal/deadlettersql"
	"github.com/headrace-go/headrace/stores/internal/sqltext"
	"github.com/headrace-go/headrace/stores/schema"
)

// DB runs statements, in a transaction or each by itself.
type DB interface {
	// Exec returns the number of rows that the statement changed.
	Exec(ctx context.Context, query string, args ...any) (int64, error)
	// Query calls row for each row of the answer until it returns false.
	Query(ctx context.Context, row func(scan func(...any) error) (bool, error), query string, args ...any) error
}

// Access is what a store lends.
type Access struct {
	// DB runs statements by themselves.
	DB DB
	// Tx runs f in a transaction of its own that reads what is committed at each statement.
	Tx func(ctx context.Context, f func(DB) error) error
	// In makes a DB of a transaction as the store's Once gives it; false: it is none.
	In func(tx any) (DB, bool)
	// Explain adds to an error what is wrong with the schema, if that is the cause.
	Explain func(ctx context.Context, err error) error
}

// Ledger is a parking.Ledger. It is safe for concurrent use.
type Ledger struct {
	Access
	dialect            schema.Dialect
	keys, msgs, audit  string // the tables
	letters            *deadlettersql.Table
	renewal            string // makes a claim in the inbox, or makes it anew: consumer, id
	now                string // the database's clock in microseconds
	forUpdate, skipped string // SQLite has neither
	look               string // what is asked for each message: consumer, key
}

var _ parking.Ledger = (*Ledger)(nil)

// New returns a ledger on the tables of n.
func New(n schema.Names, a Access) *Ledger {
	l := &Ledger{
		Access: a, dialect: n.Dialect,
		keys: n.Table("parked_key"), msgs: n.Table("parked_msg"), audit: n.Table("parked_audit"),
		letters: deadlettersql.New(n, nil, nil),
	}
	switch n.Dialect {
	case schema.Postgres:
		l.now = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"
	case schema.MySQL:
		l.now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
	case schema.SQLite:
		l.now = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)"
	}
	if n.Dialect != schema.SQLite {
		l.forUpdate, l.skipped = " FOR UPDATE", " FOR UPDATE SKIP LOCKED"
	}
	l.renewal = l.text("INSERT INTO " + n.Table("inbox") + " (consumer, id, claimed_at) VALUES (?, ?, " + sqltext.Now(n.Dialect) + ")" + l.renewed())
	l.look = l.text("UPDATE " + l.keys + addOne + ofKey + " RETURNING next_seq - 1, messages")
	if n.Dialect == schema.MySQL {
		l.look = "SELECT 1 FROM " + l.keys + ofKey
	}
	return l
}

func (l *Ledger) renewed() string {
	if l.dialect == schema.MySQL {
		return " ON DUPLICATE KEY UPDATE claimed_at = " + sqltext.Now(l.dialect)
	}
	return " ON CONFLICT (consumer, id) DO UPDATE SET claimed_at = excluded.claimed_at"
}

func (l *Ledger) text(query string) string { return sqltext.Placeholders(l.dialect, query) }

func (l *Ledger) exec(ctx context.Context, db DB, query string, args ...any) (int64, error) {
	return db.Exec(ctx, l.text(query), args...)
}

func (l *Ledger) query(ctx context.Context, db DB, row func(scan func(...any) error) (bool, error), query string, args ...any) error {
	return db.Query(ctx, row, l.text(query), args...)
}

// one runs a query of at most one row and reports whether there was one.
func (l *Ledger) one(ctx context.Context, db DB, query string, args, into []any) (bool, error) {
	return first(ctx, db, l.text(query), args, into)
}

// first is one with the text that the driver wants.
func first(ctx context.Context, db DB, text string, args, into []any) (found bool, err error) {
	err = db.Query(ctx, func(scan func(...any) error) (bool, error) {
		found = true
		return false, scan(into...)
	}, text, args...)
	return found && err == nil, err
}

// in is the transaction that a store's Once has given.
func (l *Ledger) in(tx any) (DB, error) {
	db, ok := l.In(tx)
	if !ok {
		return nil, fmt.Errorf("parking: the transaction is a %T: not one of this store", tx)
	}
	return db, nil
}

// inTx names what failed in a transaction of Once, which still has its connection: nothing more can be asked.
func inTx(ctx context.Context, operation, consumer, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("parking: %s key %q of %q: %w", operation, key, consumer, inbox.Outage(ctx, err))
}

// failed is inTx for what is no part of another transaction, and explains the error.
func (l *Ledger) failed(ctx context.Context, operation, consumer, key string, err error) error {
	if err == nil {
		return nil
	}
	return inTx(ctx, operation, consumer, key, l.Explain(ctx, err))
}

// ofKey names one key.
const ofKey = " WHERE consumer = ? AND msg_key = ?"
