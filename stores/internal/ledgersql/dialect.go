package ledgersql

import (
	"strconv"
	"strings"

	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/stores/schema"
)

// dialect is what differs between the databases in how an expression is written.
type dialect schema.Dialect

const (
	postgres = dialect(schema.Postgres)
	mysql    = dialect(schema.MySQL)
	sqlite   = dialect(schema.SQLite)
)

// text replaces each ? by what the driver wants.
func (d dialect) text(query string) string {
	if d != postgres {
		return query
	}
	var b strings.Builder
	b.Grow(len(query) + 16)
	for n := 1; ; n++ {
		before, after, found := strings.Cut(query, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(n))
		query = after
	}
}

// now is the database's clock at the moment of evaluation, in the type of the time columns.
func (d dialect) now() string {
	switch d {
	case postgres:
		return "clock_timestamp()"
	case mysql:
		return "UTC_TIMESTAMP(6)"
	default:
		return "CAST(unixepoch('subsec') * 1000000 AS INTEGER)"
	}
}

// later is now plus a number of microseconds, one argument, which may be below zero.
func (d dialect) later() string {
	switch d {
	case postgres:
		return d.now() + " + CAST(? AS bigint) * interval '1 microsecond'"
	case mysql:
		return d.now() + " + INTERVAL ? MICROSECOND"
	default:
		return d.now() + " + ?"
	}
}

// micros is a time column in microseconds since 1970.
func (d dialect) micros(column string) string {
	switch d {
	case postgres:
		return "CAST(extract(epoch FROM " + column + ") * 1000000 AS bigint)"
	case mysql:
		return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', " + column + ")"
	default:
		return column
	}
}

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
