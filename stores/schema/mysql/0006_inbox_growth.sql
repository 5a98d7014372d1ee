-- Headrace, schema version 6: inbox_growth.

INSERT INTO headrace_migration (version, applied_at) VALUES (6, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE version = version;
