-- Headrace, schema version 4: parking.

INSERT INTO headrace_migration (version, applied_at) VALUES (4, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE version = version;
