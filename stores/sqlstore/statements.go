package sqlstore

import (
	"strings"

	"github.com/headrace-go/headrace/stores/schema"
)

// statements are the texts for one dialect and one set of names.
type statements struct {
	claim         string // consumer, id, and on SQLite the time in microseconds; 1 row: claimed
	claimHead     string // of a claim of many rows: before VALUES
	claimTail     string // and after them
	claimed       string // MySQL: those of a list that are there; to be closed with the list and a bracket
	mine          string // MySQL: consumer, id; 1 row: it is there
	ensureVersion string // MySQL alone: consumer, entity
	lockVersion   string // MySQL: consumer, entity
	advance       string // consumer, entity, version; on MySQL version, consumer, entity
	prune         string // before, limit
	size          string // about how many claims
	oldest        string // the age of the oldest in seconds, or no row
}

func newStatements(n schema.Names) statements {
	inbox, version := n.Table("inbox"), n.Table("version")
	const returning = " ON CONFLICT DO NOTHING RETURNING consumer, id"
	switch n.Dialect {
	case schema.Postgres:
		return statements{
			claim:     "INSERT INTO " + inbox + " (consumer, id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
			claimHead: "INSERT INTO " + inbox + " (consumer, id) VALUES ", claimTail: returning,
			// ON CONFLICT DO UPDATE locks the row even where its WHERE is false.
			advance: "INSERT INTO " + version + " AS v (consumer, entity, version) VALUES ($1, $2, $3)" +
				" ON CONFLICT (consumer, entity) DO UPDATE SET version = excluded.version WHERE v.version <= excluded.version",
			prune: "DELETE FROM " + inbox + " WHERE ctid = ANY (ARRAY(SELECT ctid FROM " + inbox +
				" WHERE claimed_at < $1 ORDER BY claimed_at LIMIT $2 FOR UPDATE SKIP LOCKED))",
			size: "SELECT greatest(c.reltuples, pg_stat_get_live_tuples(c.oid))::bigint FROM pg_class c WHERE c.oid = to_regclass('" +
				strings.ReplaceAll(inbox, "'", "''") + "')",
			oldest: "SELECT extract(epoch FROM clock_timestamp() - claimed_at)::float8 FROM " + inbox + " ORDER BY claimed_at LIMIT 1",
		}
	case schema.MySQL:
		const same = " ON DUPLICATE KEY UPDATE claimed_at = claimed_at + INTERVAL 1 MICROSECOND"
		return statements{
			// INSERT IGNORE would also ignore every other error. Without it, "nothing changed" counts as
			// 0 rows or, with clientFoundRows, as 1, which is what a new row counts as. So a duplicate
			// changes the time and counts as 2; Once rolls it back.
			claim: "INSERT INTO " + inbox + " (consumer, id, claimed_at) VALUES (?, ?, UTC_TIMESTAMP(6))" +
				same,
			claimHead: "INSERT INTO " + inbox + " (consumer, id, claimed_at) VALUES ", claimTail: same,
			claimed: "SELECT consumer, id FROM " + inbox + " WHERE (consumer, id) IN (",
			mine:    "SELECT 1 FROM " + inbox + " WHERE consumer = ? AND id = ?",
			// First make sure that the row is there, older than any version, and lock it: an UPDATE that
			// finds no row locks a gap, and two of them then deadlock. Then read it, since the count of an
			// UPDATE that changes nothing depends on clientFoundRows.
			ensureVersion: "INSERT INTO " + version + " (consumer, entity, version) VALUES (?, ?, -9223372036854775808)" +
				" ON DUPLICATE KEY UPDATE version = version",
			lockVersion: "SELECT version FROM " + version + " WHERE consumer = ? AND entity = ? FOR UPDATE",
			advance:     "UPDATE " + version + " SET version = ? WHERE consumer = ? AND entity = ?",
			prune:       "DELETE FROM " + inbox + " WHERE claimed_at < ? ORDER BY claimed_at LIMIT ?",
			size:        "SELECT coalesce(max(table_rows), 0) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '" + n.Prefix + "inbox'",
			oldest:      "SELECT TIMESTAMPDIFF(MICROSECOND, claimed_at, UTC_TIMESTAMP(6)) / 1e6 FROM " + inbox + " ORDER BY claimed_at LIMIT 1",
		}
	default: // SQLite; schema.NewNames refused all else
		return statements{
			claim:     "INSERT INTO " + inbox + " (consumer, id, claimed_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
			claimHead: "INSERT INTO " + inbox + " (consumer, id, claimed_at) VALUES ", claimTail: returning,
			advance: "INSERT INTO " + version + " AS v (consumer, entity, version) VALUES (?, ?, ?)" +
				" ON CONFLICT (consumer, entity) DO UPDATE SET version = excluded.version WHERE v.version <= excluded.version",
			prune: "DELETE FROM " + inbox + " WHERE (consumer, id) IN (SELECT consumer, id FROM " + inbox +
				" WHERE claimed_at < ? ORDER BY claimed_at LIMIT ?)",
			size:   "SELECT count(*) FROM (SELECT 1 FROM " + inbox + " LIMIT 100000)",
			oldest: "SELECT unixepoch('subsec') - claimed_at / 1e6 FROM " + inbox + " ORDER BY claimed_at LIMIT 1",
		}
	}
}
