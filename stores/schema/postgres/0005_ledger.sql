-- Headrace, schema version 5: the crash ledger.
-- A clean start of a service writes one row for the process and none for its messages.

CREATE TABLE IF NOT EXISTS headrace_ledger_service (
    service    text COLLATE "C" NOT NULL PRIMARY KEY,
    alarms     bigint           NOT NULL,
    alarmed_at timestamptz      NOT NULL,
    misses     integer          NOT NULL
);

-- The processes that live. A clean stop removes the row.
CREATE TABLE IF NOT EXISTS headrace_ledger_run (
    service    text COLLATE "C" NOT NULL,
    run        text COLLATE "C" NOT NULL,
    instance   text COLLATE "C" NOT NULL,
    started_at timestamptz      NOT NULL,
    expires_at timestamptz      NOT NULL,
    stopping   boolean          NOT NULL,
    PRIMARY KEY (service, run)
);

-- The starts of messages after an unclean end. died: the run ended with it; alone: nothing else ran.
CREATE TABLE IF NOT EXISTS headrace_ledger_start (
    service    text COLLATE "C" NOT NULL,
    consumer   text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    run        text COLLATE "C" NOT NULL,
    instance   text COLLATE "C" NOT NULL,
    started_at timestamptz      NOT NULL,
    alone      boolean          NOT NULL,
    died       boolean          NOT NULL,
    PRIMARY KEY (service, consumer, id, run)
);

CREATE INDEX IF NOT EXISTS headrace_ledger_start_run ON headrace_ledger_start (service, run);

INSERT INTO headrace_migration (version) VALUES (5) ON CONFLICT (version) DO NOTHING;
