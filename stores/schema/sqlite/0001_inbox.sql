-- Headrace, schema version 1: the inbox.
-- claimed_at is in microseconds since 1970.

CREATE TABLE IF NOT EXISTS headrace_migration (
    version    INTEGER NOT NULL PRIMARY KEY,
    applied_at TEXT    NOT NULL DEFAULT CURRENT_TIMESTAMP
);

CREATE TABLE IF NOT EXISTS headrace_inbox (
    consumer   TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    claimed_at INTEGER NOT NULL,
    PRIMARY KEY (consumer, id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS headrace_inbox_claimed_at ON headrace_inbox (claimed_at);

CREATE TABLE IF NOT EXISTS headrace_version (
    consumer TEXT    NOT NULL,
    entity   TEXT    NOT NULL,
    version  INTEGER NOT NULL,
    PRIMARY KEY (consumer, entity)
) WITHOUT ROWID;

INSERT INTO headrace_migration (version) VALUES (1) ON CONFLICT (version) DO NOTHING;
