package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/headrace-go/headrace/headracetest/inboxsuite"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/testserver"
	"github.com/headrace-go/headrace/stores/schema"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

// place is where one test's tables are.
type place struct {
	dialect  schema.Dialect
	db       *sql.DB
	opts     []sqlstore.Option
	counters string
}

var serial atomic.Int64

// unique is a name that no other test, run or process of ours uses at this moment.
func unique() string { return fmt.Sprintf("t%d_%d_", os.Getpid(), serial.Add(1)) }

func connect(t testing.TB, driver, dsn string, conns int) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return db
}

func execute(t testing.TB, db *sql.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(context.Background(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func onSQLite(t testing.TB) place {
	// Deferred transactions and several connections: the store must not depend on stores/sqlite's settings.
	dsn := "file:" + filepath.Join(t.TempDir(), "x.db") + "?_journal_mode=WAL&_busy_timeout=10000&_synchronous=NORMAL"
	p := place{dialect: schema.SQLite, db: connect(t, "sqlite", dsn, 4), counters: "counters"}
	execute(t, p.db, "CREATE TABLE counters (name TEXT PRIMARY KEY, n INTEGER NOT NULL CHECK (n > 0))")
	return p
}

func onPostgres(t testing.TB) place {
	name := unique() + "schema"
	p := place{
		dialect: schema.Postgres, db: connect(t, "pgx", testserver.Postgres(t), 6), counters: name + ".counters",
		opts: []sqlstore.Option{sqlstore.WithSchema(name)},
	}
	t.Cleanup(func() { execute(t, p.db, "DROP SCHEMA IF EXISTS "+name+" CASCADE") })
	execute(t, p.db, "CREATE SCHEMA "+name, "CREATE TABLE "+p.counters+" (name text PRIMARY KEY, n int NOT NULL CHECK (n > 0))")
	return p
}

func onMySQL(t testing.TB, params string) place {
	prefix := unique()
	p := place{
		dialect: schema.MySQL, db: connect(t, "mysql", testserver.MySQL(t)+params, 6), counters: prefix + "counters",
		opts: []sqlstore.Option{sqlstore.WithTablePrefix(prefix)},
	}
	t.Cleanup(func() {
		names, err := schema.NewNames(schema.MySQL, "", prefix)
		if err != nil {
			t.Fatal(err)
		}
		for _, short := range append(schema.Tables(names), "counters") {
			execute(t, p.db, "DROP TABLE IF EXISTS "+names.Table(short))
		}
	})
	execute(t, p.db, "CREATE TABLE "+p.counters+" (name VARBINARY(255) PRIMARY KEY, n INT NOT NULL CHECK (n > 0)) ENGINE = InnoDB")
	return p
}

func (p place) store(t testing.TB, opts ...sqlstore.Option) *sqlstore.Store {
	t.Helper()
	store, err := sqlstore.New(p.db, p.dialect, append(opts, p.opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func (p place) migrated(t testing.TB, opts ...sqlstore.Option) *sqlstore.Store {
	t.Helper()
	store := p.store(t, opts...)
	if err := store.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return store
}

func (p place) add(ctx context.Context, tx *sql.Tx, counter string) error {
	statement := "INSERT INTO " + p.counters + " VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1"
	switch p.dialect {
	case schema.Postgres:
		statement = "INSERT INTO " + p.counters + " AS c VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET n = c.n + 1"
	case schema.MySQL:
		statement = "INSERT INTO " + p.counters + " VALUES (?, 1) ON DUPLICATE KEY UPDATE n = n + 1"
	}
	_, err := tx.ExecContext(ctx, statement, counter)
	return err
}

func (p place) count(ctx context.Context, counter string) (n int, err error) {
	parameter := "?"
	if p.dialect == schema.Postgres {
		parameter = "$1"
	}
	err = p.db.QueryRowContext(ctx, "SELECT coalesce(sum(n), 0) FROM "+p.counters+" WHERE name = "+parameter, counter).Scan(&n)
	return n, err
}

// kill ends the connection of tx on the server, as the death of the process would.
func (p place) kill(ctx context.Context, tx *sql.Tx) error {
	own, kill := "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%d)"
	if p.dialect == schema.MySQL {
		own, kill = "SELECT CONNECTION_ID()", "KILL CONNECTION %d"
	}
	var id int64
	if err := tx.QueryRowContext(ctx, own).Scan(&id); err != nil {
		return err
	}
	_, err := p.db.ExecContext(ctx, fmt.Sprintf(kill, id))
	return err
}

// waiting looks for a claim that waits for a lock.
func (p place) waiting(ctx context.Context) (bool, error) {
	query := "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT%" + p.counters[:len(p.counters)-len(".counters")] + "%inbox%'"
	if p.dialect == schema.MySQL {
		// innodb_trx would tell of locks, but it does not change while it is read more than ten times a second.
		query = "SELECT count(*) FROM information_schema.processlist WHERE state = 'update' AND info LIKE 'INSERT%" + p.counters[:len(p.counters)-len("counters")] + "inbox%'"
	}
	var n int
	err := p.db.QueryRowContext(ctx, query).Scan(&n)
	return n > 0, err
}

// ours is how the names of our tables begin.
func (p place) ours() string {
	ours := strings.TrimSuffix(p.counters, "counters")
	if p.dialect != schema.MySQL {
		ours += schema.DefaultPrefix
	}
	return ours
}

// analyze has the server look at the size of the inbox.
func (p place) analyze(ctx context.Context) error {
	statement := "ANALYZE "
	if p.dialect == schema.MySQL {
		statement = "ANALYZE TABLE "
	}
	_, err := p.db.ExecContext(ctx, statement+p.ours()+"inbox")
	return err
}

// suite runs the suite on p, emptied for each test: to make tables and drop them takes longer than the tests.
func (p place) suite(t *testing.T, another func(testing.TB) place) {
	p.migrated(t)
	ours := p.ours()
	inboxsuite.Run(t, func(t *testing.T) inboxsuite.Harness[*sql.Tx] {
		execute(t, p.db, "DELETE FROM "+p.counters, "DELETE FROM "+ours+"inbox", "DELETE FROM "+ours+"version")
		return p.harness(t, another)
	})
}

func (p place) harness(t *testing.T, another func(testing.TB) place) inboxsuite.Harness[*sql.Tx] {
	h := inboxsuite.Harness[*sql.Tx]{
		Store:      p.store(t),
		Unmigrated: func(t *testing.T) inbox.Store[*sql.Tx] { return another(t).store(t) },
		Add:        p.add,
		Count:      p.count,
		Fail: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO "+p.counters+" VALUES ('bad', 0)")
			return err
		},
		FailureAborts: p.dialect == schema.Postgres,
		End: func(_ context.Context, tx *sql.Tx, commit bool) error {
			if commit {
				return tx.Commit()
			}
			return tx.Rollback()
		},
		Idle: func() bool { return p.db.Stats().InUse == 0 },
	}
	if p.dialect != schema.SQLite {
		h.Kill, h.Waiting, h.Analyze = p.kill, p.waiting, p.analyze
	}
	return h
}

func TestInboxOnSQLite(t *testing.T) { onSQLite(t).suite(t, onSQLite) }

func TestInboxOnPostgres(t *testing.T) { onPostgres(t).suite(t, onPostgres) }

func TestInboxOnMySQL(t *testing.T) {
	for name, params := range map[string]string{
		"Defaults": "",
		// Unchanged rows then count like new ones, and a duplicate was taken for a new message.
		"ClientFoundRows": "?clientFoundRows=true",
		// Without strict mode a value that is too long is cut with a mere warning.
		"LaxModeOtherZone": "?sql_mode=%27%27&time_zone=%27%2B09%3A00%27&parseTime=true&loc=Asia%2FTokyo",
		"ReadCommitted":    "?tx_isolation=%27READ-COMMITTED%27&interpolateParams=true",
	} {
		t.Run(name, func(t *testing.T) {
			onMySQL(t, params).suite(t, func(t testing.TB) place { return onMySQL(t, params) })
		})
	}
}
