package schema_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/headrace-go/headrace/internal/testserver"
	"github.com/headrace-go/headrace/stores/schema"
)

var dialects = []schema.Dialect{schema.Postgres, schema.MySQL, schema.SQLite}

// conn is a schema.Conn.
type conn struct {
	db   *sql.Conn
	pool *sql.DB
}

// another is a second connection to the same place.
func (c conn) another(t *testing.T) conn {
	t.Helper()
	second, err := c.pool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn{second, c.pool}
}

func (c conn) Exec(ctx context.Context, statement string) error {
	_, err := c.db.ExecContext(ctx, statement)
	return err
}

func (c conn) Scalar(ctx context.Context, query string) (string, error) {
	var v sql.NullString
	err := c.db.QueryRowContext(ctx, query).Scan(&v)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return v.String, err
}

// database is an empty place of one dialect.
func database(t *testing.T, dialect schema.Dialect) (conn, schema.Names) {
	t.Helper()
	driver, dsn, schemaName, prefix := "sqlite", "file:"+filepath.Join(t.TempDir(), "x.db")+"?_busy_timeout=10000", "", ""
	own := fmt.Sprintf("s%d_%s_", os.Getpid(), strings.ToLower(regexp.MustCompile(`\W`).ReplaceAllString(t.Name(), "")))
	own = own[max(0, len(own)-30):]
	switch dialect {
	case schema.Postgres:
		driver, dsn, schemaName = "pgx", testserver.Postgres(t), "S"+own
	case schema.MySQL:
		driver, dsn, prefix = "mysql", testserver.MySQL(t), "t"+own
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	names, err := schema.NewNames(dialect, schemaName, prefix)
	if err != nil {
		t.Fatal(err)
	}
	one, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := conn{one, db}
	t.Cleanup(func() {
		switch dialect {
		case schema.Postgres:
			c.must(t, fmt.Sprintf("DROP SCHEMA IF EXISTS %q CASCADE", schemaName))
		case schema.MySQL:
			for _, short := range schema.Tables(names) {
				c.must(t, "DROP TABLE IF EXISTS "+names.Table(short))
			}
		}
		if err := errors.Join(one.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return c, names
}

func (c conn) must(t *testing.T, statement string) {
	t.Helper()
	if err := c.Exec(context.Background(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func eachDialect(t *testing.T, run func(t *testing.T, c conn, n schema.Names)) {
	for _, d := range dialects {
		t.Run(string(d), func(t *testing.T) {
			c, n := database(t, d)
			run(t, c, n)
		})
	}
}

func TestMigrateFromNothingAndAgain(t *testing.T) {
	eachDialect(t, func(t *testing.T, c conn, n schema.Names) {
		if err := schema.Check(t.Context(), c, n); !errors.Is(err, schema.ErrNotMigrated) || !strings.Contains(err.Error(), n.Table("migration")) {
			t.Errorf("Check of an empty database: %v; want ErrNotMigrated with %s", err, n.Table("migration"))
		}
		for range 2 {
			if err := schema.Migrate(t.Context(), c, n); err != nil {
				t.Fatalf("Migrate: %v", err)
			}
		}
		if err := schema.Check(t.Context(), c, n); err != nil {
			t.Errorf("Check: %v", err)
		}
	})
}

func TestMigrateFromVersionOne(t *testing.T) {
	eachDialect(t, func(t *testing.T, c conn, n schema.Names) {
		applyByHand(t, c, schema.Files(n)[:1])
		if schema.Latest() > 1 {
			err := schema.Check(t.Context(), c, n)
			if !errors.Is(err, schema.ErrNotMigrated) || !strings.Contains(err.Error(), "version 1 ") {
				t.Errorf("Check of version 1: %v; want ErrNotMigrated that names version 1", err)
			}
		}
		if err := schema.Migrate(t.Context(), c, n); err != nil {
			t.Fatalf("Migrate: %v", err)
		}
	})
}

// applyByHand runs the files as psql or mysql would, and not by our own splitting.
func applyByHand(t *testing.T, c conn, files []schema.File) {
	t.Helper()
	for _, f := range files {
		for s := range strings.SplitSeq(f.SQL, ";\n") {
			lines := slices.DeleteFunc(strings.Split(s, "\n"), func(l string) bool { return strings.HasPrefix(l, "--") })
			if s = strings.TrimSpace(strings.Join(lines, "\n")); s != "" {
				c.must(t, s)
			}
		}
	}
}

func TestFilesAppliedByHandAreRecognised(t *testing.T) {
	eachDialect(t, func(t *testing.T, c conn, n schema.Names) {
		for range 2 { // they can be applied twice
			applyByHand(t, c, schema.Files(n))
		}
		if err := schema.Check(t.Context(), c, n); err != nil {
			t.Errorf("Check: %v", err)
		}
		if err := schema.Migrate(t.Context(), readOnly{c}, n); err != nil {
			t.Errorf("Migrate with nothing to do: %v; want no change and no lock", err)
		}
	})
}

// readOnly refuses to change anything, as a role without rights to create tables would.
type readOnly struct{ conn }

func (readOnly) Exec(_ context.Context, statement string) error {
	return fmt.Errorf("not allowed: %s", statement)
}

// A deploy is rolled back after its migration: the older program must go on.
func TestOlderProgramOnNewerSchema(t *testing.T) {
	eachDialect(t, func(t *testing.T, c conn, n schema.Names) {
		if err := schema.Migrate(t.Context(), c, n); err != nil {
			t.Fatal(err)
		}
		stamp := func(version int) {
			at := "'2026-01-01 00:00:00'"
			c.must(t, fmt.Sprintf("INSERT INTO %s (version, applied_at) VALUES (%d, %s)", n.Table("migration"), version, at))
		}
		stamp(schema.Latest() + 1)
		if err := schema.Check(t.Context(), c, n); err != nil {
			t.Errorf("Check of a schema one version newer: %v; want it accepted", err)
		}
		if err := schema.Migrate(t.Context(), c, n); err != nil {
			t.Errorf("Migrate on a schema one version newer: %v; want it left alone", err)
		}
		stamp(schema.Latest() + 2)
		for name, err := range map[string]error{"Check": schema.Check(t.Context(), c, n), "Migrate": schema.Migrate(t.Context(), c, n)} {
			if !errors.Is(err, schema.ErrTooNew) || !strings.Contains(err.Error(), fmt.Sprint("version ", schema.Latest()+2)) {
				t.Errorf("%s of a schema two versions newer: %v; want ErrTooNew that names it", name, err)
			}
		}
	})
}

func TestDroppedTableIsNamed(t *testing.T) {
	eachDialect(t, func(t *testing.T, c conn, n schema.Names) {
		if err := schema.Migrate(t.Context(), c, n); err != nil {
			t.Fatal(err)
		}
		c.must(t, "DROP TABLE "+n.Table("version"))
		if err := schema.Check(t.Context(), c, n); !errors.Is(err, schema.ErrNotMigrated) || !strings.Contains(err.Error(), n.Table("version")) {
			t.Errorf("Check: %v; want ErrNotMigrated with %s", err, n.Table("version"))
		}
	})
}

// failing lets the nth Exec fail.
type failing struct {
	conn
	left *int
}

var errConn = errors.New("connection lost")

func (f failing) Exec(ctx context.Context, statement string) error {
	*f.left--
	if *f.left == 0 {
		return errConn
	}
	return f.conn.Exec(ctx, statement)
}

func TestInterruptedMigrationIsFinishedByTheNext(t *testing.T) {
	for _, d := range dialects {
		t.Run(string(d), func(t *testing.T) {
			database(t, d) // skips all of it where there is no server
			for n := 1; ; n++ {
				if n > 100 {
					t.Fatal("a migration has no end")
				}
				done := false
				t.Run(fmt.Sprint(n), func(t *testing.T) {
					c, names := database(t, d)
					left := n
					if err := schema.Migrate(t.Context(), failing{c, &left}, names); err == nil {
						done = true
					} else if !errors.Is(err, errConn) {
						t.Fatalf("Migrate whose statement %d failed: %v", n, err)
					}
					if err := schema.Migrate(t.Context(), c, names); err != nil {
						t.Errorf("Migrate after an interruption at statement %d: %v", n, err)
					}
				})
				if done {
					return
				}
			}
		})
	}
}

func TestFilesOfAllDialectsAgree(t *testing.T) {
	var want []string
	for _, d := range dialects {
		n, err := schema.NewNames(d, "", "")
		if err != nil {
			t.Fatal(err)
		}
		files := schema.Files(n)
		var got []string
		for i, f := range files {
			got = append(got, f.Name)
			if f.Version != i+1 {
				t.Errorf("%s/%s: version %d, want %d", d, f.Name, f.Version, i+1)
			}
			// Expand first: what the version before uses must stay.
			if regexp.MustCompile(`(?im)^\s*(DROP|ALTER TABLE \w+ (DROP|RENAME))\b`).MatchString(f.SQL) {
				t.Errorf("%s/%s drops or renames something", d, f.Name)
			}
		}
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has the files %v, %s has %v", d, got, dialects[0], want)
		}
		if len(files) != schema.Latest() {
			t.Errorf("%s: %d files, Latest is %d", d, len(files), schema.Latest())
		}
	}
}

func TestTablesAreFound(t *testing.T) {
	for _, d := range dialects {
		n, err := schema.NewNames(d, "", "my_")
		if err != nil {
			t.Fatal(err)
		}
		got := schema.Tables(n)
		for _, want := range []string{"migration", "inbox", "version"} {
			if !slices.Contains(got, want) {
				t.Errorf("%s: tables %v, want %s among them", d, got, want)
			}
		}
	}
}

func TestNewNamesRefusesBadInput(t *testing.T) {
	for _, tc := range []struct {
		dialect        schema.Dialect
		schema, prefix string
		want           string
	}{
		{"oracle", "", "", `dialect "oracle"`},
		{"", "", "", `dialect ""`},
		{schema.MySQL, "x", "", `schema name "x": only Postgres`},
		{schema.Postgres, "x.y", "", `schema name "x.y"`},
		{schema.Postgres, `a"b`, "", `schema name "a\"b"`},
		{schema.Postgres, strings.Repeat("x", 64), "", "schema name"},
		{schema.SQLite, "", "1a", `table prefix "1a"`},
		{schema.SQLite, "", "a`b", "table prefix"},
		{schema.SQLite, "", strings.Repeat("x", 33), "table prefix"},
	} {
		if _, err := schema.NewNames(tc.dialect, tc.schema, tc.prefix); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("NewNames(%q, %q, %q): %v; want an error with %s", tc.dialect, tc.schema, tc.prefix, err, tc.want)
		}
	}
}

func ExampleFiles() {
	names, err := schema.NewNames(schema.Postgres, "billing", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	first := schema.Files(names)[0]
	fmt.Println(first.Version, first.Name)
	head, _, _ := strings.Cut(first.SQL, "\n\n")
	fmt.Println(head)
	// Output:
	// 1 0001_inbox.sql
	// CREATE SCHEMA IF NOT EXISTS "billing";
	// SET search_path TO "billing";
}

// watched tells of its first lock request or change, and counts the tables it creates.
type watched struct {
	conn
	first  func()
	create func()
}

func (w watched) Exec(ctx context.Context, statement string) error {
	w.first()
	if strings.HasPrefix(statement, "CREATE TABLE") {
		w.create()
	}
	return w.conn.Exec(ctx, statement)
}

func (w watched) Scalar(ctx context.Context, query string) (string, error) {
	if strings.Contains(query, "GET_LOCK") {
		w.first()
	}
	return w.conn.Scalar(ctx, query)
}

// Two replicas started at once and both changed the schema.
func TestMigrationsDoNotOverlap(t *testing.T) {
	eachDialect(t, func(t *testing.T, c conn, n schema.Names) {
		other := c.another(t)
		inside, secondAsks := make(chan struct{}), make(chan struct{})
		var enter, ask sync.Once
		errs := make(chan error, 2)
		go func() {
			errs <- schema.Migrate(t.Context(), watched{c, func() {}, func() {
				enter.Do(func() { close(inside) })
				<-secondAsks
			}}, n)
		}()
		<-inside
		created := 0
		go func() {
			errs <- schema.Migrate(t.Context(), watched{other, func() { ask.Do(func() { close(secondAsks) }) }, func() { created++ }}, n)
		}()
		if err := errors.Join(<-errs, <-errs); err != nil {
			t.Fatalf("Migrate: %v", err)
		}
		if created != 0 {
			t.Errorf("the second migration created %d tables while the first one ran, want 0", created)
		}
	})
}
