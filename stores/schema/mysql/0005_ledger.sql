-- Headrace, schema version 5: ledger.

INSERT INTO headrace_migration (version, applied_at) VALUES (5, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE version = version;
