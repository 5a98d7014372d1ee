package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/stores/schema"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

// outboxStore returns a store on tables of its own.
func outboxStore(t testing.TB, dialect schema.Dialect, driver, variable string) *sqlstore.Store {
	t.Helper()
	dsn := os.Getenv(variable)
	if dsn == "" {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is not set: run integration/servers start", variable)
		}
		t.Skipf("%s is not set: run integration/servers start", variable)
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	prefix := fmt.Sprintf("o%d_%d_", os.Getpid(), time.Now().UnixNano()%1e9)
	store, err := sqlstore.New(db, dialect, sqlstore.WithTablePrefix(prefix))
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		names, err := schema.NewNames(dialect, "", prefix)
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range schema.Tables(names) {
			if _, err := db.Exec("DROP TABLE " + names.Table(table)); err != nil {
				t.Error(err)
			}
		}
	})
	return store
}

func TestOutbox(t *testing.T) {
	for _, db := range []struct {
		dialect          schema.Dialect
		driver, variable string
	}{
		{schema.Postgres, "pgx", "HEADRACE_POSTGRES_URL"},
		{schema.MySQL, "mysql", "HEADRACE_MYSQL_DSN"},
	} {
		t.Run(string(db.dialect), func(t *testing.T) {
			outboxsuite.Run(t, func(t *testing.T) outboxsuite.Subject[*sql.Tx] {
				store := outboxStore(t, db.dialect, db.driver, db.variable)
				return outboxsuite.Subject[*sql.Tx]{
					Source: store.Outbox(), Writer: store,
					Begin: func(ctx context.Context) (*sql.Tx, func() error, func() error, error) {
						tx, err := store.DB().BeginTx(ctx, nil)
						if err != nil {
							return nil, nil, nil, err
						}
						return tx, tx.Commit, tx.Rollback, nil
					},
				}
			})
		})
	}
}
