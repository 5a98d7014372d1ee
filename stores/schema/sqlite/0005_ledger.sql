-- Headrace, schema version 5: the crash ledger.
-- A clean start of a service writes one row for the process and none for its messages.
-- Times are in microseconds since 1970.

CREATE TABLE IF NOT EXISTS headrace_ledger_service (
    service    TEXT    NOT NULL PRIMARY KEY,
    alarms     INTEGER NOT NULL,
    alarmed_at INTEGER NOT NULL,
    misses     INTEGER NOT NULL
) WITHOUT ROWID;

-- The processes that live. A clean stop removes the row.
CREATE TABLE IF NOT EXISTS headrace_ledger_run (
    service    TEXT    NOT NULL,
    run        TEXT    NOT NULL,
    instance   TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    stopping   INTEGER NOT NULL,
    PRIMARY KEY (service, run)
) WITHOUT ROWID;

-- The starts of messages after an unclean end. died: the run ended with it; alone: nothing else ran.
CREATE TABLE IF NOT EXISTS headrace_ledger_start (
    service    TEXT    NOT NULL,
    consumer   TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    run        TEXT    NOT NULL,
    instance   TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    alone      INTEGER NOT NULL,
    died       INTEGER NOT NULL,
    PRIMARY KEY (service, consumer, id, run)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS headrace_ledger_start_run ON headrace_ledger_start (service, run);

INSERT INTO headrace_migration (version) VALUES (5) ON CONFLICT (version) DO NOTHING;
