-- Headrace, schema version 5: ledger.

INSERT INTO headrace_migration (version) VALUES (5) ON CONFLICT (version) DO NOTHING;
