package sqlstore_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/headrace-go/headrace/headracetest/parkingsuite"
	"github.com/headrace-go/headrace/stores/schema"
)

func (p place) parking(t *testing.T) parkingsuite.Harness[*sql.Tx] {
	history := strings.TrimSuffix(p.counters, "counters") + "history"
	id := map[schema.Dialect]string{
		schema.Postgres: "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
		schema.MySQL:    "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
		schema.SQLite:   "INTEGER PRIMARY KEY AUTOINCREMENT",
	}[p.dialect]
	execute(t, p.db, "CREATE TABLE "+history+" (n "+id+", name VARCHAR(255) NOT NULL)")
	if p.dialect == schema.MySQL {
		t.Cleanup(func() { execute(t, p.db, "DROP TABLE "+history) })
	}
	store := p.migrated(t)
	h := parkingsuite.Harness[*sql.Tx]{
		Store:   store,
		Letters: store.DeadLetters(),
		Effect: func(ctx context.Context, tx *sql.Tx, name string) error {
			parameter := "?"
			if p.dialect == schema.Postgres {
				parameter = "$1"
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO "+history+" (name) VALUES ("+parameter+")", name)
			return err
		},
		History: func(ctx context.Context) (names []string, err error) {
			rows, err := p.db.QueryContext(ctx, "SELECT name FROM "+history+" ORDER BY n")
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			for rows.Next() {
				var name string
				if err := rows.Scan(&name); err != nil {
					return nil, err
				}
				names = append(names, name)
			}
			return names, rows.Err()
		},
	}
	if p.dialect != schema.SQLite {
		h.Kill = p.kill
	}
	return h
}

func TestParkingOnSQLite(t *testing.T) { parkingsuite.Run(t, onSQLite(t).parking(t)) }

func TestParkingOnPostgres(t *testing.T) { parkingsuite.Run(t, onPostgres(t).parking(t)) }

func TestParkingOnMySQL(t *testing.T) {
	for name, params := range map[string]string{
		"Defaults":                     "",
		"ClientFoundRowsReadCommitted": "?clientFoundRows=true&interpolateParams=true&tx_isolation=%27READ-COMMITTED%27",
		"LaxModeOtherZone":             "?sql_mode=%27%27&time_zone=%27%2B09%3A00%27&parseTime=true&loc=Asia%2FTokyo",
	} {
		t.Run(name, func(t *testing.T) { parkingsuite.Run(t, onMySQL(t, params).parking(t)) })
	}
}
