package schema

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"
)

// cleanupTimeout bounds the statements that must run after the caller's context has ended.
const cleanupTimeout = 5 * time.Second

// lockWait is how long one request for MySQL's lock waits on the server, in seconds. The request is
// repeated until ctx ends.
const lockWait = "5"

// Migrate brings the schema to this program's version. Concurrent calls, from any number of processes,
// wait for each other under a lock of the database. A schema that is new enough is left alone: then no
// lock is taken and no right to create tables is needed.
//
// On Postgres and SQLite all of it is one transaction. MySQL commits each statement by itself; there an
// interrupted migration is finished by the next call.
//
// On an error the connection can be left in a transaction or with a lock when the database could not be
// reached to end it; the lender must then close it.
func Migrate(ctx context.Context, conn Conn, n Names) error {
	have, err := version(ctx, conn, n)
	if err != nil {
		return err
	}
	if have >= Latest() {
		return Check(ctx, conn, n)
	}
	switch n.Dialect {
	case MySQL:
		err = migrateLocked(ctx, conn, n)
	default:
		err = migrateInTx(ctx, conn, n)
	}
	if err != nil {
		return err
	}
	return Check(ctx, conn, n)
}

func migrateInTx(ctx context.Context, conn Conn, n Names) error {
	begin := "BEGIN"
	if n.Dialect == SQLite {
		begin = "BEGIN IMMEDIATE" // the lock
	}
	if err := conn.Exec(ctx, begin); err != nil {
		return fmt.Errorf("schema: begin the migration: %w", err)
	}
	err := func() error {
		if n.Dialect == Postgres {
			if err := lockPostgres(ctx, conn, n); err != nil {
				return err
			}
		}
		return apply(ctx, conn, n)
	}()
	if err == nil {
		if err = conn.Exec(ctx, "COMMIT"); err == nil {
			return nil
		}
		err = fmt.Errorf("schema: commit the migration: %w", err)
	}
	return errors.Join(err, cleanup(ctx, conn, "ROLLBACK"))
}

// lockPostgres takes the lock for the rest of the transaction and makes the schema the current one.
func lockPostgres(ctx context.Context, conn Conn, n Names) error {
	h := fnv.New64a()
	h.Write([]byte("headrace schema " + n.Schema + " " + n.Prefix))
	if err := conn.Exec(ctx, fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", int64(h.Sum64()))); err != nil {
		return fmt.Errorf("schema: lock: %w", err)
	}
	if n.Schema == "" {
		return nil
	}
	// CREATE SCHEMA IF NOT EXISTS asks for the right to create even when there is nothing to do.
	found, err := conn.Scalar(ctx, "SELECT nspname::text FROM pg_namespace WHERE nspname = '"+n.Schema+"'")
	if err != nil {
		return fmt.Errorf("schema: look for schema %q: %w", n.Schema, err)
	}
	if found == "" {
		if err := conn.Exec(ctx, fmt.Sprintf("CREATE SCHEMA %q", n.Schema)); err != nil {
			return fmt.Errorf("schema: create schema %q: %w", n.Schema, err)
		}
	}
	if err := conn.Exec(ctx, fmt.Sprintf("SET LOCAL search_path TO %q", n.Schema)); err != nil {
		return fmt.Errorf("schema: use schema %q: %w", n.Schema, err)
	}
	return nil
}

// migrateLocked is for MySQL, whose data definitions end a transaction.
func migrateLocked(ctx context.Context, conn Conn, n Names) error {
	h := fnv.New64a()
	h.Write([]byte(n.Prefix))
	// The name is the server's, so the database is part of it; at most 64 characters.
	lock := fmt.Sprintf("CONCAT('headrace:', SUBSTR(SHA1(DATABASE()), 1, 24), ':%016x')", h.Sum64())
	for {
		got, err := conn.Scalar(ctx, "SELECT CAST(GET_LOCK("+lock+", "+lockWait+") AS char)")
		if err != nil {
			return fmt.Errorf("schema: lock: %w", err)
		}
		if got == "1" {
			break
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("schema: lock: %w", err)
		}
	}
	return errors.Join(apply(ctx, conn, n), cleanup(ctx, conn, "DO RELEASE_LOCK("+lock+")"))
}

func apply(ctx context.Context, conn Conn, n Names) error {
	have, err := version(ctx, conn, n) // again: another program may have been faster
	if err != nil {
		return err
	}
	bare := Names{Dialect: n.Dialect, Prefix: n.Prefix} // the schema was made the current one
	for _, f := range Files(bare) {
		if f.Version <= have {
			continue
		}
		for _, s := range statements(f.SQL) {
			if err := conn.Exec(ctx, s); err != nil {
				return fmt.Errorf("schema: apply %s/%s: %w", n.Dialect, f.Name, err)
			}
		}
	}
	return nil
}

// cleanup runs a statement whether ctx has ended or not.
func cleanup(ctx context.Context, conn Conn, statement string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("schema: %s: %w", statement, err)
	}
	return nil
}
