-- Headrace, schema version 6: the inbox stays fast as it grows. InnoDB purges deleted claims by itself.

INSERT INTO headrace_migration (version, applied_at) VALUES (6, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE version = version;
