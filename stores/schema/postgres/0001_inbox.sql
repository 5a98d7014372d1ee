-- Headrace, schema version 1: the inbox.
-- The collation "C" compares bytes: faster, and no upgrade of the system's locales can break the index.

CREATE TABLE IF NOT EXISTS headrace_migration (
    version    integer     NOT NULL PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS headrace_inbox (
    consumer   text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    claimed_at timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, id)
);

CREATE INDEX IF NOT EXISTS headrace_inbox_claimed_at ON headrace_inbox (claimed_at);

CREATE TABLE IF NOT EXISTS headrace_version (
    consumer text COLLATE "C" NOT NULL,
    entity   text COLLATE "C" NOT NULL,
    version  bigint           NOT NULL,
    PRIMARY KEY (consumer, entity)
);

INSERT INTO headrace_migration (version) VALUES (1) ON CONFLICT (version) DO NOTHING;
