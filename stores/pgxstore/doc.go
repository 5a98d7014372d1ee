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
//
// The outbox's rows of a key that is blocked (outbox.BlockKey), or whose publishing fails for long, stay, and the relay reads past them for each page
// of their topic: 100,000 of them take about 0.05 s. From 200 on they also keep it from leaving out the index entries of the rows behind them that
// were published, which are there until vacuum removes them. When it takes longer than the relay's DatabaseTimeout, nothing of the topic is published.
//
// # Hosts that die
//
// A host that dies without a word (power, network) leaves its transactions open, and the next attempt at a message waits for the claim until its
// own deadline. The server ends them when TCP's keepalive notices, on Linux by default after 2 hours. Set tcp_keepalives_idle, _interval and
// _count, or idle_in_transaction_session_timeout if no handler pauses for longer between two statements.
package pgxstore
