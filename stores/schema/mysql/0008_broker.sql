-- Headrace, schema version 8: broker.

INSERT INTO headrace_migration (version, applied_at) VALUES (8, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE version = version;
