// Package failures holds the tests of what Headrace does when things fail, from end to end: a runtime with its
// breaker, its parked keys, its crash ledger and its dead letters, on Kafka and Postgres and on an embedded JetStream
// and SQLite. They are judged by what is in the tables and, by package history, by what happened in between.
//
// go test runs small sizes. "make failures" runs the same code with the sizes of the promise: see full.
package failures
