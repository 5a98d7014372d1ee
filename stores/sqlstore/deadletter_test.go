package sqlstore_test

import (
	"database/sql"
	"testing"

	"github.com/headrace-go/headrace/headracetest/deadlettersuite"
)

func (p place) deadLetters(t *testing.T) deadlettersuite.Harness[*sql.Tx] {
	store := p.migrated(t)
	return deadlettersuite.Harness[*sql.Tx]{Table: store.DeadLetters(), Store: store, Writer: store}
}

func TestDeadLettersOnSQLite(t *testing.T) {
	deadlettersuite.Run(t, func(t *testing.T) deadlettersuite.Harness[*sql.Tx] { return onSQLite(t).deadLetters(t) })
}

func TestDeadLettersOnPostgres(t *testing.T) {
	deadlettersuite.Run(t, func(t *testing.T) deadlettersuite.Harness[*sql.Tx] { return onPostgres(t).deadLetters(t) })
}

func TestDeadLettersOnMySQL(t *testing.T) {
	// What a duplicate counts as depends on clientFoundRows.
	for name, params := range map[string]string{"Defaults": "", "ClientFoundRows": "?clientFoundRows=true"} {
		t.Run(name, func(t *testing.T) {
			deadlettersuite.Run(t, func(t *testing.T) deadlettersuite.Harness[*sql.Tx] { return onMySQL(t, params).deadLetters(t) })
		})
	}
}
