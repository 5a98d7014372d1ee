package ledgersql

import (
	"strings"

	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/stores/internal/sqltext"
	"github.com/headrace-go/headrace/stores/schema"
)

// dialect is what differs between the databases in how an expression is written.
type dialect schema.Dialect

const (
	postgres = dialect(schema.Postgres)
	mysql    = dialect(schema.MySQL)
	sqlite   = dialect(schema.SQLite)
)

func (d dialect) text(query string) string    { return sqltext.Placeholders(schema.Dialect(d), query) }
func (d dialect) now() string                 { return sqltext.Now(schema.Dialect(d)) }
func (d dialect) later() string               { return sqltext.Later(schema.Dialect(d)) }
func (d dialect) micros(column string) string { return sqltext.Micros(schema.Dialect(d), column) }

// ignore is the end of an INSERT that leaves a row alone that is there. column is any one of the table's.
func (d dialect) ignore(column string) string {
	if d == mysql {
		return " ON DUPLICATE KEY UPDATE " + column + " = " + column
	}
	return " ON CONFLICT DO NOTHING"
}

// forUpdate locks the rows of a SELECT. SQLite has locked the whole database by then.
func (d dialect) forUpdate() string {
	if d == sqlite {
		return ""
	}
	return " FOR UPDATE"
}

// in is the condition that (consumer, id) is one of keys, of which there is at least one.
func (d dialect) in(keys []ledger.Key) (string, []any) {
	list := strings.Repeat(", (?, ?)", len(keys))[2:]
	if d == sqlite {
		list = "VALUES " + list
	}
	args := make([]any, 0, 2*len(keys))
	for _, k := range keys {
		args = append(args, k.Consumer, k.ID)
	}
	return "(consumer, id) IN (" + list + ")", args
}

// chunks cuts keys into pieces of few sizes, so that there are few statements to prepare.
func chunks(keys []ledger.Key) [][]ledger.Key {
	var list [][]ledger.Key
	for _, size := range [...]int{64, 8, 1} {
		for len(keys) >= size {
			list = append(list, keys[:size])
			keys = keys[size:]
		}
	}
	return list
}
