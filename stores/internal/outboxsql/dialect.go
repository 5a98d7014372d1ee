package outboxsql

import (
	"strconv"
	"strings"
	"time"

	"github.com/headrace-go/headrace/outbox"
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

// never is a time before any other.
func (d dialect) never() string {
	switch d {
	case postgres:
		return "'epoch'"
	case mysql:
		return "'1970-01-01'"
	default:
		return "0"
	}
}

// timeArg is t as an argument for a time column.
func (d dialect) timeArg(t time.Time) any {
	switch d {
	case postgres:
		return t
	case mysql:
		return t.UTC().Format("2006-01-02 15:04:05.000000") // whatever the connection's time zone
	default:
		return t.UnixMicro()
	}
}

// truth is a boolean as an expression.
func (d dialect) truth(b bool) string {
	if b {
		return "TRUE"
	}
	return "FALSE"
}

// in is the condition that column is one of ids, of which there is at least one. Postgres gets the list
// as an argument, so that the statement stays the same and prepared; the others get digits.
func (d dialect) in(column string, ids []int64) (string, []any) {
	if d == postgres {
		return column + " = ANY (CAST(CAST(? AS text) AS bigint[]))", []any{"{" + digits(ids) + "}"}
	}
	return column + " IN (" + digits(ids) + ")", nil
}

func digits(ids []int64) string {
	list := make([]byte, 0, 8*len(ids))
	for i, id := range ids {
		if i > 0 {
			list = append(list, ',')
		}
		list = strconv.AppendInt(list, id, 10)
	}
	return string(list)
}

// deleteFrom deletes rows by their primary key, where cond holds as well; "" is always. MySQL gets each
// row by itself: a range or a scan would also lock, or wait for, a row beside it that another
// transaction has locked.
func (d dialect) deleteFrom(table string, ids []int64, cond string) (string, []any) {
	if cond != "" {
		cond = " AND " + cond
	}
	if d != mysql {
		in, args := d.in("id", ids)
		return "DELETE FROM " + table + " WHERE " + in + cond, args
	}
	return "DELETE t FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) x STRAIGHT_JOIN " + table +
		" t FORCE INDEX (PRIMARY) ON t.id = x.id WHERE TRUE" + cond, []any{"[" + digits(ids) + "]"}
}

// leased is the condition that (bucket, epoch) is one of leases, of which there is at least one.
func (d dialect) leased(leases []outbox.Lease) (string, []any) {
	if d == postgres {
		buckets := make([]string, len(leases))
		epochs := make([]string, len(leases))
		for i, l := range leases {
			buckets[i], epochs[i] = strconv.Itoa(l.Bucket), strconv.FormatInt(l.Epoch, 10)
		}
		return "(bucket, epoch) IN (SELECT * FROM unnest(CAST(CAST(? AS text) AS bigint[]), CAST(CAST(? AS text) AS bigint[])))",
			[]any{"{" + strings.Join(buckets, ",") + "}", "{" + strings.Join(epochs, ",") + "}"}
	}
	var b strings.Builder
	b.WriteString("(bucket, epoch) IN (")
	if d == sqlite {
		b.WriteString("VALUES ")
	}
	for i, l := range leases {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("(" + strconv.Itoa(l.Bucket) + "," + strconv.FormatInt(l.Epoch, 10) + ")")
	}
	b.WriteByte(')')
	return b.String(), nil
}

// textArray is a list of texts as a Postgres array.
func textArray(list []string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, text := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		for _, c := range []byte(text) {
			if c == '"' || c == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(c)
		}
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}
