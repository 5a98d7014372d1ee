// Package pgxstore is the inbox and the outbox over pgx v5 and its pool, for Postgres. BEGIN and the claim share one
// round trip, rows that outbox.Add makes in the transaction go with the COMMIT in another, and the answer to COMMIT is
// checked. A handler with one statement costs three round trips in all, and two if the statement's result is not needed: see [Queue].
//
// # Growth
//
// Claims stay in one table with two indexes. That of time is appended to, that of ids grows where the ids fall: ids
// that begin with the time, such as the UUIDv7 that event.New makes, touch the same few pages again and again, however
// many claims there are. Random ids touch a page of their own each, which Postgres writes to its log as a whole the first time after
// every checkpoint: with tens of millions of them give checkpoints more room (max_wal_size) and set wal_compression.
// [Store.Prune] deletes in the order of time and does not wait for claims, nor they for it.
package pgxstore
