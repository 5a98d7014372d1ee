-- Headrace, schema version 3: dead letters. For MySQL 8 and MariaDB 10.6 and later.
-- Times are in microseconds since 1970, UTC. Text is bytes (UTF-8), so that no collation takes one name for another.
-- document is the dead letter but for its payload, as JSON with a version; both may be encrypted. The other columns are
-- to search by.

CREATE TABLE IF NOT EXISTS headrace_deadletter (
    id             VARBINARY(255) NOT NULL PRIMARY KEY,
    state          VARBINARY(16)  NOT NULL,
    consumer       VARBINARY(255) NOT NULL,
    topic          VARBINARY(255) NOT NULL,
    partition_no   INT            NOT NULL,
    position_no    BIGINT         NOT NULL,
    event_type     VARBINARY(255) NOT NULL,
    subject        VARBINARY(255) NOT NULL,
    msg_key        VARBINARY(255) NOT NULL,
    message_id     VARBINARY(255) NOT NULL,
    correlation_id VARBINARY(255) NOT NULL,
    error_type     VARBINARY(255) NOT NULL,
    fingerprint    VARBINARY(255) NOT NULL,
    batch          VARBINARY(255) NOT NULL,
    error          BLOB           NOT NULL,
    search         BLOB           NOT NULL,
    deaths         INT            NOT NULL,
    hops           INT            NOT NULL,
    failed_at      BIGINT         NOT NULL,
    redacted       BOOLEAN        NOT NULL,
    sealed         BOOLEAN        NOT NULL,
    document       LONGBLOB       NOT NULL,
    payload        LONGBLOB,
    edited_from    VARBINARY(255) NOT NULL,
    claim          VARBINARY(255) NOT NULL DEFAULT '',
    claimed_by     VARBINARY(255) NOT NULL DEFAULT '',
    claimed_until  BIGINT         NOT NULL DEFAULT 0,
    claimed_from   VARBINARY(16)  NOT NULL DEFAULT '',
    op             VARBINARY(255) NOT NULL DEFAULT '',
    indexed_at     BIGINT         NOT NULL,
    changed_at     BIGINT         NOT NULL,
    KEY headrace_deadletter_failed_at (failed_at, id),
    KEY headrace_deadletter_state (state, failed_at, id),
    KEY headrace_deadletter_message (consumer, message_id),
    KEY headrace_deadletter_fingerprint (fingerprint, failed_at),
    KEY headrace_deadletter_batch (batch, failed_at),
    KEY headrace_deadletter_subject (subject)
) ENGINE = InnoDB;

-- What was done to the letters. letter_id '' is a purge: what it was of is gone.
CREATE TABLE IF NOT EXISTS headrace_deadletter_trail (
    id        BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    letter_id VARBINARY(255) NOT NULL,
    at        BIGINT         NOT NULL,
    actor     VARBINARY(255) NOT NULL,
    action    VARBINARY(255) NOT NULL,
    reason    BLOB           NOT NULL,
    batch     VARBINARY(255) NOT NULL,
    detail    MEDIUMBLOB     NOT NULL,
    KEY headrace_deadletter_trail_letter (letter_id, id)
) ENGINE = InnoDB;

INSERT INTO headrace_migration (version, applied_at) VALUES (3, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE version = version;
