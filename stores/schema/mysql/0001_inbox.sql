-- Headrace, schema version 1: the inbox. For MySQL 8 and MariaDB 10.6 and later.
-- Ids are bytes: a collation would take "A" for "a" and cut trailing spaces, and so skip messages.
-- Times are UTC, whatever the session's time zone.

CREATE TABLE IF NOT EXISTS headrace_migration (
    version    INT         NOT NULL PRIMARY KEY,
    applied_at DATETIME(6) NOT NULL
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS headrace_inbox (
    consumer   VARBINARY(255) NOT NULL,
    id         VARBINARY(255) NOT NULL,
    claimed_at DATETIME(6)    NOT NULL,
    PRIMARY KEY (consumer, id),
    KEY headrace_inbox_claimed_at (claimed_at)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS headrace_version (
    consumer VARBINARY(255) NOT NULL,
    entity   VARBINARY(255) NOT NULL,
    version  BIGINT         NOT NULL,
    PRIMARY KEY (consumer, entity)
) ENGINE = InnoDB;

INSERT INTO headrace_migration (version, applied_at) VALUES (1, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE version = version;
