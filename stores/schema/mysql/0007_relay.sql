-- Headrace, schema version 7: relay.

INSERT INTO headrace_migration (version, applied_at) VALUES (7, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE version = version;
