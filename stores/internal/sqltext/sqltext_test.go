package sqltext_test

import (
	"testing"

	"github.com/headrace-go/headrace/stores/internal/sqltext"
	"github.com/headrace-go/headrace/stores/schema"
)

func TestPlaceholders(t *testing.T) {
	const query = "UPDATE t SET a = ?, b = ? WHERE c = ?"
	for d, want := range map[schema.Dialect]string{
		schema.Postgres: "UPDATE t SET a = $1, b = $2 WHERE c = $3",
		schema.MySQL:    query,
		schema.SQLite:   query,
	} {
		if got := sqltext.Placeholders(d, query); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
	if got := sqltext.Placeholders(schema.Postgres, "SELECT 1"); got != "SELECT 1" {
		t.Errorf("without arguments: %q", got)
	}
}
