-- Headrace, schema version 6: the inbox stays fast as it grows.
--
-- Claims are inserted and, once they are older than the retention, deleted in the order of time. By default autovacuum
-- would wait until a fifth of the table is dead: ten million rows of fifty. At a fiftieth each pass has less to do, and
-- the freed pages are used again. Analyze as often: the size in the metrics is its estimate.

ALTER TABLE headrace_inbox SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 10000
);

INSERT INTO headrace_migration (version) VALUES (6) ON CONFLICT (version) DO NOTHING;
