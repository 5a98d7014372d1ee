// Package sqlstore is the inbox and the outbox over database/sql, for Postgres, MySQL 8, MariaDB 10.6 and SQLite. It
// imports no driver: open the *sql.DB with one of your own.
//
// Postgres drivers must report the COMMIT of an aborted transaction as an error, since database/sql has
// no way to ask for the answer's tag. pgx/v5/stdlib and lib/pq do. stores/pgxstore looks at the tag itself.
//
// On MySQL any sql_mode and setting of clientFoundRows will do, and any isolation of the pool's connections from read
// committed on: Check and Migrate refuse READ-UNCOMMITTED. On SQLite use one writer connection, or open the database
// with stores/sqlite.
//
// Group transactions (inbox.Grouped, HandleBatch) work on all of them. On Postgres and SQLite one statement claims
// all and tells which are new. MySQL has no such statement: a group with a duplicate in it takes a second
// transaction, and the look for the claim before each COMMIT, which finds a transaction that MySQL gave up after a
// deadlock, is one more round trip. What a handler did after an error of that kind, which it swallowed, was no part
// of any transaction and stays: return the error.
//
// # Limits on MySQL and MariaDB
//
// A host that dies without a word (power, network) leaves its transactions open: the claim of a message, whose next
// attempt elsewhere then fails with a lock timeout; delayed rows that a relay was just moving, which come late; a row that it was
// giving up, which the next relay cannot delete, and publishes again. The server ends them after wait_timeout, by default 8 hours, or when
// TCP's keepalive notices, on Linux by default after 2. wait_timeout=60 in the DSN makes it a minute; keep db.SetConnMaxIdleTime below it.
//
// InnoDB removes deleted rows only once no transaction has a snapshot from before: beside mysqldump --single-transaction, or a long report
// under repeatable read, the relay's reads walk over all outbox rows that were published since it began, and get slower until
// it ends. Let those read a replica. (On Postgres the relay knows from where on to read.)
//
// The rows of a key that is blocked (outbox.BlockKey), or whose publishing fails for long, are read past for each page of their topic: 100,000 of them
// take about 0.3 s here and 0.05 s on Postgres. When it takes longer than the relay's DatabaseTimeout, nothing of the topic is published.
package sqlstore
