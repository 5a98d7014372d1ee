-- Headrace, schema version 7: the relay under load. Nothing changes here: the settings are Postgres's, and the dead
-- rows have an index that begins with the topic.

INSERT INTO headrace_migration (version, applied_at) VALUES (7, UTC_TIMESTAMP(6))
    ON DUPLICATE KEY UPDATE version = version;
