// Package sqlstore is the inbox and the outbox over database/sql, for Postgres, MySQL 8, MariaDB 10.6 and SQLite. It
// imports no driver: open the *sql.DB with one of your own.
//
// Postgres drivers must report the COMMIT of an aborted transaction as an error, since database/sql has
// no way to ask for the answer's tag. pgx/v5/stdlib and lib/pq do. stores/pgxstore looks at the tag itself.
//
// On MySQL any sql_mode, isolation level and setting of clientFoundRows will do. On SQLite use one
// writer connection, or open the database with stores/sqlite.
//
// Group transactions (inbox.Grouped, HandleBatch) work on all of them. On Postgres and SQLite one statement claims
// all and tells which are new. MySQL has no such statement: a group with a duplicate in it takes a second
// transaction, and the look for the claim before each COMMIT, which finds a transaction that MySQL gave up after a
// deadlock, is one more round trip. What a handler did after an error of that kind, which it swallowed, was no part
// of any transaction and stays: return the error.
package sqlstore
