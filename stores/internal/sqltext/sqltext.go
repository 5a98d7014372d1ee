// Package sqltext is how the databases differ in the text of a statement.
package sqltext

import (
	"strconv"
	"strings"

	"github.com/headrace-go/headrace/stores/schema"
)

// Placeholders replaces each ? of query by what d's drivers want.
func Placeholders(d schema.Dialect, query string) string {
	if d != schema.Postgres {
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

// Now is the database's clock at the moment of evaluation, in the type of the time columns.
func Now(d schema.Dialect) string {
	switch d {
	case schema.Postgres:
		return "clock_timestamp()"
	case schema.MySQL:
		return "UTC_TIMESTAMP(6)"
	default:
		return "CAST(unixepoch('subsec') * 1000000 AS INTEGER)"
	}
}

// Later is [Now] plus a number of microseconds, one argument, which may be below zero.
func Later(d schema.Dialect) string {
	switch d {
	case schema.Postgres:
		return Now(d) + " + CAST(? AS bigint) * interval '1 microsecond'"
	case schema.MySQL:
		return Now(d) + " + INTERVAL ? MICROSECOND"
	default:
		return Now(d) + " + ?"
	}
}

// Micros is a time, a column or an expression, in microseconds since 1970.
func Micros(d schema.Dialect, time string) string {
	switch d {
	case schema.Postgres:
		return "CAST(extract(epoch FROM " + time + ") * 1000000 AS bigint)"
	case schema.MySQL:
		return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', " + time + ")"
	default:
		return time
	}
}
