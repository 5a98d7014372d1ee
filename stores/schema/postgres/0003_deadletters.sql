-- Headrace, schema version 3: deadletters.

INSERT INTO headrace_migration (version) VALUES (3) ON CONFLICT (version) DO NOTHING;
