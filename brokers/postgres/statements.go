package postgres

import (
	"strings"

	"github.com/headrace-go/headrace/stores/schema"
)

// statements are the texts for one set of names.
type statements struct {
	publish, publishDelayed, addTopic string
	promote                           string

	find, adopt, register, addLeases  string
	lockTopic, lockGroups, copyBase   string
	unregister, forgetGroup, someRows string
	join, beat, take, letGo, leave    string
	remove, count                     string
	fetch, writers                    string
	lag, backlog                      string
}

func newStatements(n schema.Names) statements {
	names := strings.NewReplacer(
		"{group}", n.Table("broker_group"),
		"{message}", n.Table("broker_message"),
		"{delayed}", n.Table("broker_delayed"),
		"{attempt}", n.Table("broker_attempt"),
		"{member}", n.Table("broker_member"),
		"{lease}", n.Table("broker_lease"),
		"{now}", "clock_timestamp()",
		"{later}", "clock_timestamp() + $3::bigint * interval '1 microsecond'",
		// The leases of the arguments $2 (buckets) and $3 (epochs) that are still valid, locked until the end of
		// the statement: whoever takes a bucket waits for it, and after that it finds nothing.
		"{held}", `held AS MATERIALIZED (
	SELECT l.bucket FROM {lease} l JOIN unnest($2::smallint[], $3::bigint[]) AS x (bucket, epoch)
	ON l.group_id = $1 AND l.bucket = x.bucket AND l.epoch = x.epoch ORDER BY l.bucket FOR SHARE OF l)`,
	)
	text := func(s string) string { return names.Replace(names.Replace(s)) }
	return statements{
		publish: text(`
INSERT INTO {message} (group_id, bucket, msg_key, uuid, metadata, payload)
SELECT g.id, r.b, r.k, r.u, r.m, r.p
FROM {group} g, unnest($2::smallint[], $3::bytea[], $4::text[], $5::text[], $6::bytea[]) WITH ORDINALITY AS r (b, k, u, m, p, n)
WHERE g.topic = $1 ORDER BY r.n, g.id`),
		publishDelayed: text(`
INSERT INTO {delayed} (topic, bucket, msg_key, uuid, metadata, payload, available_at)
SELECT $1, r.b, r.k, r.u, r.m, r.p, r.a
FROM unnest($2::smallint[], $3::bytea[], $4::text[], $5::text[], $6::bytea[], $7::timestamptz[]) WITH ORDINALITY AS r (b, k, u, m, p, a, n)
ORDER BY r.n`),
		addTopic: text(`INSERT INTO {group} (topic, consumer, base) VALUES ($1, '', true) ON CONFLICT DO NOTHING`),

		// The clock is volatile: compared with it as it is, each row of the topic would be read.
		promote: text(`
WITH due AS (
	DELETE FROM {delayed} WHERE id = ANY (ARRAY(
		SELECT id FROM {delayed} WHERE topic = $1 AND available_at <= (SELECT {now}) AND EXISTS (SELECT FROM {group} WHERE topic = $1)
		ORDER BY available_at, id LIMIT $2 FOR UPDATE SKIP LOCKED))
	RETURNING id, available_at, bucket, msg_key, uuid, metadata, payload, created_at)
INSERT INTO {message} (group_id, bucket, msg_key, uuid, metadata, payload, created_at)
SELECT g.id, d.bucket, d.msg_key, d.uuid, d.metadata, d.payload, greatest(d.created_at, d.available_at)
FROM due d, {group} g WHERE g.topic = $1 ORDER BY d.available_at, d.id, g.id`),

		find:  text(`SELECT id, (extract(epoch FROM created_at) * 1000000)::bigint FROM {group} WHERE topic = $1 AND consumer = $2`),
		adopt: text(`UPDATE {group} SET consumer = $2 WHERE topic = $1 AND consumer = '' RETURNING id`),
		// It conflicts with the base that nobody has yet, even if that was inserted a moment ago: then it is adopted.
		register: text(`INSERT INTO {group} (topic, consumer, base)
SELECT $1, $2, NOT EXISTS (SELECT FROM {group} WHERE topic = $1 AND base AND consumer <> '') ON CONFLICT DO NOTHING RETURNING id`),
		lockTopic: text(`SELECT pg_advisory_xact_lock(hashtextextended('{group} ' || $1::text, 0))`),
		addLeases: text(`INSERT INTO {lease} (group_id, bucket) SELECT $1, b FROM generate_series(0, $2::integer - 1) b ON CONFLICT DO NOTHING`),

		lockGroups: text(`LOCK TABLE {group} IN ACCESS EXCLUSIVE MODE`),
		copyBase: text(`
INSERT INTO {message} (group_id, bucket, msg_key, uuid, metadata, payload, created_at)
SELECT $2, bucket, msg_key, uuid, metadata, payload, created_at FROM {message} WHERE group_id = $1 ORDER BY id`),

		unregister:  text(`DELETE FROM {group} WHERE topic = $1 AND consumer = $2 RETURNING id`),
		forgetGroup: text(`WITH l AS (DELETE FROM {lease} WHERE group_id = $1), m AS (DELETE FROM {member} WHERE group_id = $1) DELETE FROM {attempt} WHERE group_id = $1`),
		someRows:    text(`DELETE FROM {message} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {message} WHERE group_id = $1 LIMIT $2))`),

		join: text(`INSERT INTO {member} (group_id, owner, expires_at) SELECT id, $2, {later} FROM {group} WHERE id = $1`),
		// Whether the group is there, whether the member is (it is not when it had expired), how many others are
		// alive, and the member's leases. Who has expired is removed, but for those whose row another statement has
		// locked: it may prolong it just now.
		beat: text(`
WITH beat AS (
	UPDATE {member} SET expires_at = {later} WHERE group_id = $1 AND owner = $2 AND expires_at > {now} RETURNING 1
), gone AS (
	DELETE FROM {member} WHERE group_id = $1 AND owner = ANY (ARRAY(
		SELECT owner FROM {member} WHERE group_id = $1 AND owner <> $2 AND expires_at <= {now} FOR UPDATE SKIP LOCKED))
)
SELECT EXISTS (SELECT FROM {group} WHERE id = $1), EXISTS (SELECT FROM beat),
	(SELECT count(*) FROM {member} WHERE group_id = $1 AND owner <> $2 AND expires_at > {now}),
	array_agg(bucket ORDER BY bucket), array_agg(epoch ORDER BY bucket)
FROM {lease} WHERE group_id = $1 AND owner = $2`),
		take: text(`
UPDATE {lease} SET owner = $2, epoch = epoch + 1 WHERE group_id = $1 AND bucket = ANY (ARRAY(
	SELECT bucket FROM {lease} l WHERE group_id = $1 AND NOT EXISTS (SELECT FROM {member} m WHERE m.group_id = $1 AND m.owner = l.owner)
	ORDER BY bucket LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING bucket, epoch`),
		letGo: text(`
UPDATE {lease} l SET owner = '' FROM unnest($2::smallint[], $3::bigint[]) AS x (bucket, epoch)
WHERE l.group_id = $1 AND l.bucket = x.bucket AND l.epoch = x.epoch`),
		leave: text(`DELETE FROM {member} WHERE group_id = $1 AND owner = $2`),

		// By ctid, so that each row is found through the primary key whatever the table's statistics say: those of a
		// queue are always out of date. After a failover an id can be another row's, which was stored at another time.
		remove: text(`
WITH {held}, gone AS (
	DELETE FROM {message} WHERE ctid = ANY (ARRAY(
		SELECT m.ctid FROM unnest($4::smallint[], $5::bigint[], $6::timestamptz[]) AS x (bucket, id, stored) JOIN held ON held.bucket = x.bucket
		CROSS JOIN LATERAL (SELECT ctid FROM {message} WHERE group_id = $1 AND bucket = x.bucket AND id = x.id AND created_at = x.stored LIMIT 1) m))
	RETURNING id
), counts AS (
	DELETE FROM {attempt} WHERE group_id = $1 AND id = ANY (ARRAY(SELECT id FROM gone JOIN unnest($7::bigint[]) AS c (id) USING (id)))
)
SELECT ARRAY(SELECT bucket FROM held)`),
		// Of messages that are still there: one can have been acked since, and nothing would delete its row.
		count: text(`
WITH {held}
INSERT INTO {attempt} AS a (group_id, id, deliveries)
SELECT $1, x.id, x.deliveries FROM unnest($4::smallint[], $5::bigint[], $6::timestamptz[], $7::integer[]) AS x (bucket, id, stored, deliveries)
JOIN held ON held.bucket = x.bucket
CROSS JOIN LATERAL (SELECT FROM {message} WHERE group_id = $1 AND bucket = x.bucket AND id = x.id AND created_at = x.stored LIMIT 1) m
ON CONFLICT (group_id, id) DO UPDATE SET deliveries = greatest(a.deliveries, excluded.deliveries)`),

		// group; buckets, the ids above which to look in each, up to which there can be rows that are known, and how many
		// rows to take of each; the ids and times of the rows that are known; bytes in all. The comparisons of rows make it
		// walk the primary key, and only the first column of one ends the walk: that is the bucket.
		fetch: text(`
SELECT r.bucket, r.id, r.msg_key, r.uuid, r.metadata, r.payload, (extract(epoch FROM r.created_at) * 1000000)::bigint, coalesce(a.deliveries, 0)
FROM (
	SELECT m.*, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) - size AS before
	FROM unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::bigint[]) AS b (bucket, low, seen, take)
	CROSS JOIN LATERAL (
		SELECT *, octet_length(metadata) + coalesce(octet_length(payload), 0) AS size FROM {message}
		WHERE group_id = $1 AND (bucket, id) > (b.bucket, b.low) AND (bucket, id) <= (b.bucket, 9223372036854775807)
		AND (id > b.seen OR (id, created_at) NOT IN (SELECT * FROM unnest($6::bigint[], $7::timestamptz[])))
		ORDER BY group_id, bucket, id LIMIT b.take) m
) r LEFT JOIN {attempt} a ON a.group_id = $1 AND a.id = r.id
WHERE r.before < $8 ORDER BY r.id`),

		// The last id that was given out, when the server started, and the transactions that may have written rows
		// which cannot be seen yet: whoever writes has this lock until it commits. See proof.
		writers: text(`
SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('{message}', 'id')::regclass), 0), pg_postmaster_start_time(),
	ARRAY(SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND relation = '{message}'::regclass
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND mode = 'RowExclusiveLock' AND granted)`),

		lag: text(`SELECT count(*) FROM (SELECT FROM {message} WHERE group_id = $1 AND bucket = ANY ($2::smallint[]) LIMIT $3) c`),
		backlog: text(`
SELECT g.consumer, (SELECT count(*) FROM (SELECT FROM {message} m WHERE m.group_id = g.id LIMIT $2) c)
FROM {group} g WHERE g.topic = $1 ORDER BY 2 DESC, 1 LIMIT 1`),
	}
}
