-- Headrace, schema version 6: the inbox stays fast as it grows. SQLite uses the pages of deleted claims again by itself.

INSERT INTO headrace_migration (version) VALUES (6) ON CONFLICT (version) DO NOTHING;
