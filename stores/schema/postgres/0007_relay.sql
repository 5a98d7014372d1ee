-- Headrace, schema version 7: the relay's tables under load.
-- Leases and relays are updated for ever: room beside each row keeps the updates in its page, and vacuum comes
-- by a count. Delayed rows come and go like the outbox's. The index serves the list of dead rows by topic.

ALTER TABLE headrace_outbox_lease SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

ALTER TABLE headrace_outbox_relay SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

ALTER TABLE headrace_outbox_delayed SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

CREATE INDEX IF NOT EXISTS headrace_outbox_dead_topic ON headrace_outbox_dead (topic, id);

INSERT INTO headrace_migration (version) VALUES (7) ON CONFLICT (version) DO NOTHING;
