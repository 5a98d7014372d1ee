-- Headrace, schema version 3: dead letters.
-- Times are in microseconds since 1970.
-- document is the dead letter but for its payload, as JSON with a version; both may be encrypted. The other columns are
-- to search by.

CREATE TABLE IF NOT EXISTS headrace_deadletter (
    id             TEXT    NOT NULL PRIMARY KEY,
    state          TEXT    NOT NULL,
    consumer       TEXT    NOT NULL,
    topic          TEXT    NOT NULL,
    partition_no   INTEGER NOT NULL,
    position_no    INTEGER NOT NULL,
    event_type     TEXT    NOT NULL,
    subject        TEXT    NOT NULL,
    msg_key        TEXT    NOT NULL,
    message_id     TEXT    NOT NULL,
    correlation_id TEXT    NOT NULL,
    error_type     TEXT    NOT NULL,
    fingerprint    TEXT    NOT NULL,
    batch          TEXT    NOT NULL,
    error          TEXT    NOT NULL,
    search         TEXT    NOT NULL,
    deaths         INTEGER NOT NULL,
    hops           INTEGER NOT NULL,
    failed_at      INTEGER NOT NULL,
    redacted       INTEGER NOT NULL,
    sealed         INTEGER NOT NULL,
    document       BLOB    NOT NULL,
    payload        BLOB,
    edited_from    TEXT    NOT NULL,
    claim          TEXT    NOT NULL DEFAULT '',
    claimed_by     TEXT    NOT NULL DEFAULT '',
    claimed_until  INTEGER NOT NULL DEFAULT 0,
    claimed_from   TEXT    NOT NULL DEFAULT '',
    op             TEXT    NOT NULL DEFAULT '',
    indexed_at     INTEGER NOT NULL,
    changed_at     INTEGER NOT NULL
);

CREATE INDEX IF NOT EXISTS headrace_deadletter_failed_at ON headrace_deadletter (failed_at, id);
CREATE INDEX IF NOT EXISTS headrace_deadletter_state ON headrace_deadletter (state, failed_at, id);
CREATE INDEX IF NOT EXISTS headrace_deadletter_message ON headrace_deadletter (consumer, message_id);
CREATE INDEX IF NOT EXISTS headrace_deadletter_fingerprint ON headrace_deadletter (fingerprint, failed_at);
CREATE INDEX IF NOT EXISTS headrace_deadletter_batch ON headrace_deadletter (batch, failed_at) WHERE batch <> '';
CREATE INDEX IF NOT EXISTS headrace_deadletter_subject ON headrace_deadletter (subject) WHERE subject <> '';

-- What was done to the letters. letter_id '' is a purge: what it was of is gone.
CREATE TABLE IF NOT EXISTS headrace_deadletter_trail (
    id        INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    letter_id TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    actor     TEXT    NOT NULL,
    action    TEXT    NOT NULL,
    reason    TEXT    NOT NULL,
    batch     TEXT    NOT NULL,
    detail    TEXT    NOT NULL
);

CREATE INDEX IF NOT EXISTS headrace_deadletter_trail_letter ON headrace_deadletter_trail (letter_id, id);

INSERT INTO headrace_migration (version) VALUES (3) ON CONFLICT (version) DO NOTHING;
