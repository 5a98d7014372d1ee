-- Headrace, schema version 6: inbox_growth.

INSERT INTO headrace_migration (version) VALUES (6) ON CONFLICT (version) DO NOTHING;
