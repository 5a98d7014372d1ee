-- Headrace, schema version 2: the outbox.
-- Rows are inserted and deleted, never updated. A relay reads by topic, in the order of id. Ids are not
-- used again: AUTOINCREMENT. Times are in microseconds since 1970.
-- bucket is FNV-1a 64 of the key, or of uuid where the key is '', modulo 64.

CREATE TABLE IF NOT EXISTS headrace_outbox (
    id         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    topic      TEXT    NOT NULL,
    bucket     INTEGER NOT NULL,
    msg_key    TEXT    NOT NULL,
    uuid       TEXT    NOT NULL,
    metadata   TEXT    NOT NULL,
    payload    BLOB,
    created_at INTEGER NOT NULL
);

CREATE INDEX IF NOT EXISTS headrace_outbox_topic ON headrace_outbox (topic, id);

-- Messages whose time has not come. They move to headrace_outbox, with a new id.
CREATE TABLE IF NOT EXISTS headrace_outbox_delayed (
    id           INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    available_at INTEGER NOT NULL,
    topic        TEXT    NOT NULL,
    bucket       INTEGER NOT NULL,
    msg_key      TEXT    NOT NULL,
    uuid         TEXT    NOT NULL,
    metadata     TEXT    NOT NULL,
    payload      BLOB,
    created_at   INTEGER NOT NULL
);

CREATE INDEX IF NOT EXISTS headrace_outbox_delayed_available_at ON headrace_outbox_delayed (available_at, id);

-- Rows that were given up. id is the row's own.
CREATE TABLE IF NOT EXISTS headrace_outbox_dead (
    id         INTEGER NOT NULL PRIMARY KEY,
    topic      TEXT    NOT NULL,
    bucket     INTEGER NOT NULL,
    msg_key    TEXT    NOT NULL,
    uuid       TEXT    NOT NULL,
    metadata   TEXT    NOT NULL,
    payload    BLOB,
    created_at INTEGER NOT NULL,
    died_at    INTEGER NOT NULL,
    error_type TEXT    NOT NULL,
    error      TEXT    NOT NULL,
    blocks     INTEGER NOT NULL
);

CREATE INDEX IF NOT EXISTS headrace_outbox_dead_blocks ON headrace_outbox_dead (topic, msg_key) WHERE blocks;

-- The live relays, and which of them may publish a bucket. owner '' is nobody.
CREATE TABLE IF NOT EXISTS headrace_outbox_relay (
    owner      TEXT    NOT NULL PRIMARY KEY,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS headrace_outbox_lease (
    bucket     INTEGER NOT NULL PRIMARY KEY,
    owner      TEXT    NOT NULL DEFAULT '',
    epoch      INTEGER NOT NULL DEFAULT 0,
    expires_at INTEGER NOT NULL DEFAULT 0
);

INSERT INTO headrace_outbox_lease (bucket) VALUES
    (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15),
    (16), (17), (18), (19), (20), (21), (22), (23), (24), (25), (26), (27), (28), (29), (30), (31),
    (32), (33), (34), (35), (36), (37), (38), (39), (40), (41), (42), (43), (44), (45), (46), (47),
    (48), (49), (50), (51), (52), (53), (54), (55), (56), (57), (58), (59), (60), (61), (62), (63)
    ON CONFLICT (bucket) DO NOTHING;

INSERT INTO headrace_migration (version) VALUES (2) ON CONFLICT (version) DO NOTHING;
