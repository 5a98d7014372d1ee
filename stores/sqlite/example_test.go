package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/sqlite"
)

func ExampleOpen() {
	dir, err := os.MkdirTemp("", "headrace")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := sqlite.Open(filepath.Join(dir, "billing.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	ctx := context.Background()
	if err := store.Migrate(ctx); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := store.DB().ExecContext(ctx, "CREATE TABLE invoice (order_id TEXT)"); err != nil {
		fmt.Println(err)
		return
	}
	for range 2 { // delivered twice
		done, err := store.Once(ctx, inbox.Claim{Consumer: "billing", ID: "order-1"}, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO invoice VALUES ('order-1')")
			return err
		})
		fmt.Println(done, err)
	}
	var invoices int
	fmt.Println(store.DB().QueryRowContext(ctx, "SELECT count(*) FROM invoice").Scan(&invoices), invoices)
	// Output:
	// true <nil>
	// false <nil>
	// <nil> 1
}
