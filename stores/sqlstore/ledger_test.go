package sqlstore_test

import (
	"testing"

	"github.com/headrace-go/headrace/headracetest/ledgersuite"
	"github.com/headrace-go/headrace/stores/schema"
)

func TestLedgerOnPostgres(t *testing.T) {
	ledgersuite.Run(t, outboxStore(t, schema.Postgres, "pgx", "HEADRACE_POSTGRES_URL").Ledger())
}

func TestLedgerOnMySQL(t *testing.T) {
	ledgersuite.Run(t, outboxStore(t, schema.MySQL, "mysql", "HEADRACE_MYSQL_DSN").Ledger())
}
