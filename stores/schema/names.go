package schema

import (
	"fmt"
	"regexp"
	"strings"
)

// Dialect is the kind of a database.
type Dialect string

// The dialects.
const (
	Postgres Dialect = "postgres"
	MySQL    Dialect = "mysql" // MySQL 8.0 and later, MariaDB 10.6 and later
	SQLite   Dialect = "sqlite"
)

// DefaultPrefix begins the names of our tables and indexes, as the .sql files have them.
const DefaultPrefix = "headrace_"

// Names tells where our tables are. Make one with [NewNames].
type Names struct {
	// Dialect is the kind of the database.
	Dialect Dialect
	// Schema is the Postgres schema that holds the tables. Empty: the first of the search path.
	Schema string
	// Prefix begins each table's name.
	Prefix string
}

var (
	validSchema = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)
	validPrefix = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,31}$`)
)

// NewNames checks its arguments. schema is for Postgres alone; an empty prefix is [DefaultPrefix].
func NewNames(dialect Dialect, schema, prefix string) (Names, error) {
	switch dialect {
	case Postgres, MySQL, SQLite:
	default:
		return Names{}, fmt.Errorf("schema: dialect %q: want %q, %q or %q", dialect, Postgres, MySQL, SQLite)
	}
	if schema != "" && dialect != Postgres {
		return Names{}, fmt.Errorf("schema: schema name %q: only Postgres has one; use a table prefix", schema)
	}
	if schema != "" && !validSchema.MatchString(schema) {
		return Names{}, fmt.Errorf("schema: schema name %q: want letters, digits and underscores, at most 63", schema)
	}
	if prefix == "" {
		prefix = DefaultPrefix
	}
	if !validPrefix.MatchString(prefix) {
		return Names{}, fmt.Errorf("schema: table prefix %q: want letters, digits and underscores, at most 32", prefix)
	}
	return Names{Dialect: dialect, Schema: schema, Prefix: prefix}, nil
}

// Table returns our table of the given short name ("inbox"), quoted and qualified for use in a statement.
func (n Names) Table(short string) string {
	quote := `"`
	if n.Dialect == MySQL {
		quote = "`"
	}
	name := quote + n.Prefix + short + quote
	if n.Schema != "" {
		name = quote + n.Schema + quote + "." + name
	}
	return name
}

// rename puts the prefix into a migration's text.
func (n Names) rename(text string) string {
	if n.Prefix == DefaultPrefix {
		return text
	}
	return strings.ReplaceAll(text, DefaultPrefix, n.Prefix)
}
