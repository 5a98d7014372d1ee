-- Headrace, schema version 2: the outbox. For MySQL 8 and MariaDB 10.6 and later.
-- Rows are inserted and deleted, never updated. A relay reads by topic, in the order of id.
-- bucket is FNV-1a 64 of the key, or of uuid where the key is '', modulo 64.
-- Text is bytes (UTF-8), so that no collation takes one name for another.

CREATE TABLE IF NOT EXISTS headrace_outbox (
    id         BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    topic      VARBINARY(255)  NOT NULL,
    bucket     SMALLINT        NOT NULL,
    msg_key    VARBINARY(1024) NOT NULL,
    uuid       VARBINARY(255)  NOT NULL,
    metadata   MEDIUMBLOB      NOT NULL,
    payload    LONGBLOB,
    created_at DATETIME(6)     NOT NULL,
    KEY headrace_outbox_topic (topic, id)
) ENGINE = InnoDB;

-- Messages whose time has not come. They move to headrace_outbox, with a new id.
CREATE TABLE IF NOT EXISTS headrace_outbox_delayed (
    id           BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    available_at DATETIME(6)     NOT NULL,
    topic        VARBINARY(255)  NOT NULL,
    bucket       SMALLINT        NOT NULL,
    msg_key      VARBINARY(1024) NOT NULL,
    uuid         VARBINARY(255)  NOT NULL,
    metadata     MEDIUMBLOB      NOT NULL,
    payload      LONGBLOB,
    created_at   DATETIME(6)     NOT NULL,
    KEY headrace_outbox_delayed_available_at (available_at, id)
) ENGINE = InnoDB;

-- Rows that were given up. id is the row's own.
CREATE TABLE IF NOT EXISTS headrace_outbox_dead (
    id         BIGINT          NOT NULL PRIMARY KEY,
    topic      VARBINARY(255)  NOT NULL,
    bucket     SMALLINT        NOT NULL,
    msg_key    VARBINARY(1024) NOT NULL,
    uuid       VARBINARY(255)  NOT NULL,
    metadata   MEDIUMBLOB      NOT NULL,
    payload    LONGBLOB,
    created_at DATETIME(6)     NOT NULL,
    died_at    DATETIME(6)     NOT NULL,
    error_type VARBINARY(255)  NOT NULL,
    error      BLOB            NOT NULL,
    blocks     BOOLEAN         NOT NULL,
    KEY headrace_outbox_dead_blocks (topic, blocks, msg_key)
) ENGINE = InnoDB;

-- The live relays, and which of them may publish a bucket. owner '' is nobody.
CREATE TABLE IF NOT EXISTS headrace_outbox_relay (
    owner      VARBINARY(255) NOT NULL PRIMARY KEY,
    expires_at DATETIME(6)    NOT NULL
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS headrace_outbox_lease (
    bucket     SMALLINT       NOT NULL PRIMARY KEY,
    owner      VARBINARY(255) NOT NULL DEFAULT '',
    epoch      BIGINT         NOT NULL DEFAULT 0,
    expires_at DATETIME(6)    NOT NULL DEFAULT '1970-01-01'
) ENGINE = InnoDB;

INSERT INTO headrace_outbox_lease (bucket) VALUES
    (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15),
    (16), (17), (18), (19), (20), (21), (22), (23), (24), (25), (26), (27), (28), (29), (30), (31),
    (32), (33), (34), (35), (36), (37), (38), (39), (40), (41), (42), (43), (44), (45), (46), (47),
    (48), (49), (50), (51), (52), (53), (54), (55), (56), (57), (58), (59), (60), (61), (62), (63)
    ON DUPLICATE KEY UPDATE bucket = bucket;

INSERT INTO headrace_migration (version, applied_at) VALUES (2, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE version = version;
