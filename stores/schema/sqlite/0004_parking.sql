-- Headrace, schema version 4: parked keys.
-- A key has a row for as long as it has messages. SQLite has one writer at a time, which is all the lock
-- that the protocol of package parking needs.
-- Times are in microseconds since 1970. msg_key is the key, or "sha256:" and its hash.

CREATE TABLE IF NOT EXISTS headrace_parked_key (
    consumer    TEXT    NOT NULL,
    msg_key     TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    next_seq    INTEGER NOT NULL,
    messages    INTEGER NOT NULL CHECK (messages >= 0),
    failures    INTEGER NOT NULL,
    parked_at   INTEGER NOT NULL,
    failed_at   INTEGER NOT NULL,
    released_at INTEGER NOT NULL,
    first_type  TEXT    NOT NULL,
    first_error TEXT    NOT NULL,
    last_type   TEXT    NOT NULL,
    last_error  TEXT    NOT NULL,
    owner       TEXT    NOT NULL,
    lease_until INTEGER NOT NULL,
    PRIMARY KEY (consumer, msg_key)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS headrace_parked_key_state ON headrace_parked_key (consumer, state, released_at);

-- payload is NULL for a message without one; record is the rest of the message and of its failure.
CREATE TABLE IF NOT EXISTS headrace_parked_msg (
    consumer    TEXT    NOT NULL,
    msg_key     TEXT    NOT NULL,
    seq         INTEGER NOT NULL,
    id          TEXT    NOT NULL,
    parked_at   INTEGER NOT NULL,
    dead_letter TEXT    NOT NULL,
    record      BLOB    NOT NULL,
    payload     BLOB,
    PRIMARY KEY (consumer, msg_key, seq),
    UNIQUE (consumer, id)
);

-- Who did what, and the messages that were skipped.
CREATE TABLE IF NOT EXISTS headrace_parked_audit (
    n           INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    action      TEXT    NOT NULL,
    actor       TEXT    NOT NULL,
    reason      TEXT    NOT NULL,
    consumer    TEXT    NOT NULL,
    msg_key     TEXT    NOT NULL,
    seq         INTEGER NOT NULL,
    id          TEXT    NOT NULL,
    dead_letter TEXT    NOT NULL,
    record      BLOB,
    payload     BLOB
);

CREATE INDEX IF NOT EXISTS headrace_parked_audit_at ON headrace_parked_audit (at);

INSERT INTO headrace_migration (version) VALUES (4) ON CONFLICT (version) DO NOTHING;
