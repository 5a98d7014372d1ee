-- Headrace, schema version 4: parking.

INSERT INTO headrace_migration (version) VALUES (4) ON CONFLICT (version) DO NOTHING;
