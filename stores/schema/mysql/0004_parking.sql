-- Headrace, schema version 4: parked keys. For MySQL 8 and MariaDB 10.6 and later.
-- A key has a row for as long as it has messages. Whoever adds, runs or removes a message of the key locks
-- that row first, by an UPDATE or FOR UPDATE, until the end of the transaction: see package parking.
-- Times are in microseconds since 1970. msg_key is the key, or "sha256:" and its hash.

CREATE TABLE IF NOT EXISTS headrace_parked_key (
    consumer    VARBINARY(255) NOT NULL,
    msg_key     VARBINARY(255) NOT NULL,
    state       VARBINARY(16)  NOT NULL,
    next_seq    BIGINT         NOT NULL,
    messages    BIGINT         NOT NULL CHECK (messages >= 0),
    failures    BIGINT         NOT NULL,
    parked_at   BIGINT         NOT NULL,
    failed_at   BIGINT         NOT NULL,
    released_at BIGINT         NOT NULL,
    first_type  VARBINARY(255) NOT NULL,
    first_error BLOB           NOT NULL,
    last_type   VARBINARY(255) NOT NULL,
    last_error  BLOB           NOT NULL,
    owner       VARBINARY(64)  NOT NULL,
    lease_until BIGINT         NOT NULL,
    PRIMARY KEY (consumer, msg_key),
    KEY headrace_parked_key_state (consumer, state, released_at)
) ENGINE = InnoDB;

-- payload is NULL for a message without one; record is the rest of the message and of its failure.
CREATE TABLE IF NOT EXISTS headrace_parked_msg (
    consumer    VARBINARY(255) NOT NULL,
    msg_key     VARBINARY(255) NOT NULL,
    seq         BIGINT         NOT NULL,
    id          VARBINARY(255) NOT NULL,
    parked_at   BIGINT         NOT NULL,
    dead_letter VARBINARY(255) NOT NULL,
    record      LONGBLOB       NOT NULL,
    payload     LONGBLOB,
    PRIMARY KEY (consumer, msg_key, seq),
    UNIQUE KEY headrace_parked_msg_id (consumer, id)
) ENGINE = InnoDB;

-- Who did what, and the messages that were skipped.
CREATE TABLE IF NOT EXISTS headrace_parked_audit (
    n           BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at          BIGINT         NOT NULL,
    action      VARBINARY(16)  NOT NULL,
    actor       VARBINARY(255) NOT NULL,
    reason      BLOB           NOT NULL,
    consumer    VARBINARY(255) NOT NULL,
    msg_key     VARBINARY(255) NOT NULL,
    seq         BIGINT         NOT NULL,
    id          VARBINARY(255) NOT NULL,
    dead_letter VARBINARY(255) NOT NULL,
    record      LONGBLOB,
    payload     LONGBLOB,
    KEY headrace_parked_audit_at (at)
) ENGINE = InnoDB;

INSERT INTO headrace_migration (version, applied_at) VALUES (4, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE version = version;
