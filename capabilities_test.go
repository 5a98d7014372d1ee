package headrace_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/brokers/pulsar"
	"github.com/headrace-go/headrace/brokers/redisstream"
	"github.com/headrace-go/headrace/brokers/sqs"
)

// declaring are the adapters with their default configurations. None of them needs a real server for this.
func declaring(t *testing.T) []declared {
	pool, err := pgxpool.New(t.Context(), "postgres://localhost/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	client := redis.NewClient(&redis.Options{})
	t.Cleanup(func() { _ = client.Close() }) // it has no connection
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	pulsars, err := pulsarclient.NewClient(pulsarclient.ClientOptions{URL: "pulsar://localhost:1", MetricsRegisterer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pulsars.Close)
	queues := awssqs.New(awssqs.Options{Region: "none"})
	return []declared{
		{"memory", opened(t, memory.New, memory.Config{})},
		{"NATS JetStream", opened(t, func(c jetstream.Config) (*embedded.Broker, error) {
			return embedded.New(embedded.Config{Dir: t.TempDir()}, c)
		}, jetstream.Config{})},
		{"Apache Kafka", opened(t, kafka.New, kafka.Config{Seeds: cluster.ListenAddrs()})},
		{"PostgreSQL", opened(t, postgres.New, postgres.Config{Pool: pool})},
		{"Redis Streams", opened(t, redisstream.New, redisstream.Config{Client: client})},
		{"RabbitMQ", opened(t, amqp.New, amqp.Config{URLs: []string{"amqp://localhost:1"}})},
		{"Apache Pulsar", opened(t, pulsar.New, pulsar.Config{Client: pulsars})},
		{"SQS, standard", opened(t, sqs.New, sqs.Config{Client: queues})},
		{"SQS, FIFO", opened(t, sqs.New, sqs.Config{Client: queues, FIFO: true})},
	}
}

type declared struct {
	name string
	caps brokers.Capabilities
}

func opened[C any, B brokers.Broker](t *testing.T, open func(C) (B, error), config C) brokers.Capabilities {
	t.Helper()
	b, err := open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close %T: %v", b, err)
		}
	})
	return b.Capabilities()
}

// capabilityTable is the README's, of what the adapters declare.
func capabilityTable(all []declared) string {
	var b strings.Builder
	b.WriteString("| by default | order | un-acked at once | redelivers after | counts | gives back | delays one | fan-out | replays | takes away after | metadata |\n")
	b.WriteString("|" + strings.Repeat(" --- |", 11) + "\n")
	yes := func(does bool) string {
		if does {
			return "yes"
		}
		return "no"
	}
	limit := func(n int, format, none string) string {
		if n == 0 {
			return none
		}
		return fmt.Sprintf(format, n)
	}
	for _, d := range all {
		c := d.caps
		patience := "never"
		switch {
		case c.ExtendsPatience && c.PatienceLimit > 0:
			patience = fmt.Sprintf("%s, extended up to %s", short(c.Patience), short(c.PatienceLimit))
		case c.ExtendsPatience:
			patience = short(c.Patience) + ", extended"
		case c.Patience > 0:
			patience = short(c.Patience)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n",
			d.name, c.Ordering, limit(c.MaxUnacked, "%d", "window"), patience, yes(c.CountsDeliveries), yes(c.Releases), yes(c.Delays), yes(c.FanOut), yes(c.Replays),
			limit(c.DeliveryLimit, "%d deliveries or more, if the queue says so", "never"), limit(c.MaxHeaderBytes>>10, "%d KiB", "no limit"))
	}
	return b.String()
}

// short is a duration without its zeros.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// The README's table is what the adapters declare, and the conformance suite holds them to it.
func TestReadmeShowsWhatAdaptersDeclare(t *testing.T) {
	const begin, end = "<!-- capabilities -->\n", "<!-- /capabilities -->\n"
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	want := capabilityTable(declaring(t))
	before, rest, found := strings.Cut(string(readme), begin)
	got, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("README.md lacks the lines %s and %s", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	if got == want {
		return
	}
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile("README.md", []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("README.md shows\n%s\nand the adapters declare\n%s\nUPDATE=1 go test -run ReadmeShows . writes it", got, want)
}
