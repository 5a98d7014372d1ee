-- Headrace, schema version 8: broker.

INSERT INTO headrace_migration (version) VALUES (8) ON CONFLICT (version) DO NOTHING;
