// Package sqlstore is the inbox and the outbox over database/sql, for Postgres, MySQL 8, MariaDB 10.6 and SQLite. It
// imports no driver: open the *sql.DB with one of your own.
//
// Postgres drivers must report the COMMIT of an aborted transaction as an error, since database/sql has
// no way to ask for the answer's tag. pgx/v5/stdlib and lib/pq do. stores/pgxstore looks at the tag itself.
//
// On MySQL any sql_mode, isolation level and setting of clientFoundRows will do. On SQLite use one
// writer connection, or open the database with stores/sqlite.
package sqlstore
