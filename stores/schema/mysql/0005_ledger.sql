-- Headrace, schema version 5: the crash ledger. For MySQL 8 and MariaDB 10.6 and later.
-- A clean start of a service writes one row for the process and none for its messages.

CREATE TABLE IF NOT EXISTS headrace_ledger_service (
    service    VARBINARY(255) NOT NULL PRIMARY KEY,
    alarms     BIGINT         NOT NULL,
    alarmed_at DATETIME(6)    NOT NULL,
    misses     INT            NOT NULL
) ENGINE = InnoDB;

-- The processes that live. A clean stop removes the row.
CREATE TABLE IF NOT EXISTS headrace_ledger_run (
    service    VARBINARY(255) NOT NULL,
    run        VARBINARY(255) NOT NULL,
    instance   VARBINARY(255) NOT NULL,
    started_at DATETIME(6)    NOT NULL,
    expires_at DATETIME(6)    NOT NULL,
    stopping   BOOLEAN        NOT NULL,
    PRIMARY KEY (service, run)
) ENGINE = InnoDB;

-- The starts of messages after an unclean end. died: the run ended with it; alone: nothing else ran.
CREATE TABLE IF NOT EXISTS headrace_ledger_start (
    service    VARBINARY(255) NOT NULL,
    consumer   VARBINARY(255) NOT NULL,
    id         VARBINARY(255) NOT NULL,
    run        VARBINARY(255) NOT NULL,
    instance   VARBINARY(255) NOT NULL,
    started_at DATETIME(6)    NOT NULL,
    alone      BOOLEAN        NOT NULL,
    died       BOOLEAN        NOT NULL,
    PRIMARY KEY (service, consumer, id, run),
    KEY headrace_ledger_start_run (service, run)
) ENGINE = InnoDB;

INSERT INTO headrace_migration (version, applied_at) VALUES (5, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE version = version;
