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

// Redis returns the URL of a Redis server, likewise.
func Redis(t testing.TB) string {
	t.Helper()
	return get(t, "HEADRACE_REDIS_URL", "redis")
}

// NATS returns the URL of a nats-server with JetStream, likewise.
func NATS(t testing.TB) string {
	t.Helper()
	return get(t, "HEADRACE_NATS_URL", "nats")
}

// AMQP returns the URL of a RabbitMQ server, likewise.
func AMQP(t testing.TB) string {
	t.Helper()
	return get(t, "HEADRACE_AMQP_URL", "rabbitmq")
}

// SQS returns the endpoint of a server that speaks SQS, likewise.
func SQS(t testing.TB) string {
	t.Helper()
	return get(t, "HEADRACE_SQS_URL", "elasticmq")
}

// Pulsar returns the URL of a Pulsar server, likewise.
func Pulsar(t testing.TB) string {
	t.Helper()
	return get(t, "HEADRACE_PULSAR_URL", "pulsar")
}

// PulsarAdmin returns the URL of that server's administration, likewise.
func PulsarAdmin(t testing.TB) string {
	t.Helper()
	return get(t, "HEADRACE_PULSAR_ADMIN_URL", "pulsar")
}

// PulsarProxy returns the address, host:port, that the server tells clients of its listener "proxied", likewise. A test listens
// there, see [NewProxyAt].
func PulsarProxy(t testing.TB) string {
	t.Helper()
	return get(t, "HEADRACE_PULSAR_PROXY", "pulsar")
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
