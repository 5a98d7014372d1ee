package sqlite_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/headrace-go/headrace/headracetest/parkingsuite"
	"github.com/headrace-go/headrace/stores/sqlite"
)

func TestParking(t *testing.T) {
	store := migrated(t, sqlite.WithSynchronous(sqlite.SynchronousNormal))
	if _, err := store.DB().ExecContext(t.Context(), "CREATE TABLE history (n INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	parkingsuite.Run(t, parkingsuite.Harness[*sql.Tx]{
		Store:   store,
		Letters: store.DeadLetters(),
		Effect: func(ctx context.Context, tx *sql.Tx, name string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO history (name) VALUES (?)", name)
			return err
		},
		History: func(ctx context.Context) (names []string, err error) {
			rows, err := store.DB().QueryContext(ctx, "SELECT name FROM history ORDER BY n")
			if err != nil {
				return nil, err
			}
			defer func() {
				if cerr := rows.Close(); err == nil {
					err = cerr
				}
			}()
			for rows.Next() {
				var name string
				if err := rows.Scan(&name); err != nil {
					return nil, err
				}
				names = append(names, name)
			}
			return names, rows.Err()
		},
	})
}
