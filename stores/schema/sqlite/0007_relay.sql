-- Headrace, schema version 7: the list of dead rows by topic.

CREATE INDEX IF NOT EXISTS headrace_outbox_dead_topic ON headrace_outbox_dead (topic, id);

INSERT INTO headrace_migration (version) VALUES (7) ON CONFLICT (version) DO NOTHING;
