// Package testserver finds the real servers that tests run against. integration/servers starts them.
package testserver

import (
	"os"
	"testing"
)

// Postgres returns the URL of a Postgres server whose user may create schemas. Without one it skips the
// test, or fails it when CI is "true": there a missing server must not pass for a success.
func Postgres(t testing.TB) string {
	t.Helper()
	return get(t, "HEADRACE_POSTGRES_URL", "postgres")
}

// MySQL returns the DSN of a MariaDB or MySQL server, as github.com/go-sql-driver/mysql reads it, likewise.
func MySQL(t testing.TB) string {
	t.Helper()
	return get(t, "HEADRACE_MYSQL_DSN", "mariadb")
}

// Kafka returns the addresses of a Kafka cluster, with commas between, likewise.
func Kafka(t testing.TB) string {
	t.Helper()
	return get(t, "HEADRACE_KAFKA_SEEDS", "kafka")
}

func get(t testing.TB, variable, server string) string {
	t.Helper()
	value := os.Getenv(variable)
	if value != "" {
		return value
	}
	const how = `%s is not set; start a server: integration/servers start %s && eval "$(integration/servers env %s)"`
	if os.Getenv("CI") == "true" {
		t.Fatalf(how, variable, server, server)
	}
	t.Skipf(how, variable, server, server)
	return ""
}
