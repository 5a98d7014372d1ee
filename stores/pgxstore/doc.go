// Package pgxstore is the inbox and the outbox over pgx v5 and its pool, for Postgres. BEGIN and the claim share one
// round trip, and the answer to COMMIT is checked.
package pgxstore
