package main

import (
	"context"
	"database/sql"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/pgxstore"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

const (
	tables = `CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, cents BIGINT NOT NULL)`
	add    = `INSERT INTO balances (account, cents) VALUES ($1, $2) ON CONFLICT (account) DO UPDATE SET cents = balances.cents + excluded.cents`
)

// postgresLedger makes a Ledger of a transaction of pgx.
func postgresLedger(store *pgxstore.Store) func(pgx.Tx) Ledger {
	return func(tx pgx.Tx) Ledger { return pgLedger{store, tx} }
}

type pgLedger struct {
	store *pgxstore.Store
	tx    pgx.Tx
}

func (l pgLedger) Add(ctx context.Context, account string, cents int64) error {
	_, err := l.tx.Exec(ctx, add, account, cents)
	return err
}

func (l pgLedger) Publish(ctx context.Context, topic string, msgs ...*message.Message) error {
	return outbox.Add(ctx, l.store, l.tx, topic, msgs...)
}

// sqlLedger makes a Ledger of a transaction of database/sql.
func sqlLedger(store *sqlstore.Store) func(*sql.Tx) Ledger {
	return func(tx *sql.Tx) Ledger { return stdLedger{store, tx} }
}

type stdLedger struct {
	store *sqlstore.Store
	tx    *sql.Tx
}

func (l stdLedger) Add(ctx context.Context, account string, cents int64) error {
	_, err := l.tx.ExecContext(ctx, add, account, cents)
	return err
}

func (l stdLedger) Publish(ctx context.Context, topic string, msgs ...*message.Message) error {
	return outbox.Add(ctx, l.store, l.tx, topic, msgs...)
}
