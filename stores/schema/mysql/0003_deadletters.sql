-- Headrace, schema version 3: deadletters.

INSERT INTO headrace_migration (version, applied_at) VALUES (3, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE version = version;
