-- Headrace, schema version 7: relay.

INSERT INTO headrace_migration (version) VALUES (7) ON CONFLICT (version) DO NOTHING;
