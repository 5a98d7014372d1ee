// Command brokers compares, on each message system, the whole of Headrace on its adapter with the stock Watermill adapter on a Watermill
// router and with the system's client library alone. Everything runs in one process against one server of each kind, one after
// another: a row of Headrace stands beside rows that were measured in the same minute.
//
//	integration/servers start
//	eval "$(integration/servers env)"
//	go run ./integration/bench/brokers [-seconds 2] [-only kafka/headrace] [-format both|table|json]
//
// A system without a server is left out, and named on stderr. Each row has a topic of its own, filled before the clock starts: CloudEvents
// of 1 KiB that do not compress, with 1,000 keys in turn. The handlers do nothing, or wait 5 ms. A row takes -seconds after its
// first message at most, and the whole command five minutes.
//
// The columns, which JSON lines have as well:
//
//   - messages/s from the first message to the last. Of a row that handles all, the first quarter does not count: what was fetched before
//     the first message is no work of that time.
//   - x stock, x raw: the ratio to those two on the same system with the same handler. "-": there is none.
//   - CPU (user and system, this process alone) per message.
//
// # What is compared
//
// Headrace runs with every stage but a database, telemetry that records nothing, a window of 256, and its default concurrency; handlers
// that wait may all run at once. Every message is acked.
//
// The stock adapters have their own defaults, and what a service would set: they begin with the oldest message, and get as many
// messages ahead as Headrace does where they can be told. None of them asks for a second message, or hands it to the router, before
// the first was acked, but Kafka's, which does so per partition.
//
// The raw clients loop over batches as large as Headrace's window, handle one message after another, and ack:
//
//   - kafka: franz-go's poll, which commits every 5 s what was polled before the last poll. Topics have 8 partitions.
//   - jetstream: nats.go's pull consumer, with 256 messages ahead, and an ack for each, which nobody confirms.
//   - amqp: amqp091-go on the adapter's quorum queue, with a prefetch count of 256, and an ack for each.
//   - redisstream: go-redis, XREADGROUP of 256, and one XACK for all of them.
//   - sqs: the AWS SDK on ElasticMQ, four loops as the adapter has four pollers, each receives 10 and deletes 10. Watermill's adapter
//     for SQS is not among this module's dependencies.
//   - pulsar: pulsar-client-go, a Key_Shared consumer with a queue of 256, and acks that the client collects and nobody confirms. Each
//     message is an entry of its own. There is no stock adapter.
//   - postgres: pgx, on a table with the columns of the adapter's: a transaction locks the consumer's offset, selects the next 256 rows,
//     and, when they were handled, advances it. watermill-sql has batches of 100, its default, and BYTEA payloads.
//   - memory: there is no raw client. Watermill's GoChannel is persistent, so that it has the messages beforehand; it hands them
//     all over at once, in no order.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"runtime/pprof"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headrace-go/headrace/integration/bench/internal/pace"
)

func main() {
	seconds := flag.Float64("seconds", 2, "the longest that one row takes after its first message")
	only := flag.String("only", "", "only the rows whose system/subject contain this")
	format := flag.String("format", "both", "table, json (lines), or both")
	profile := flag.String("cpuprofile", "", "write a CPU profile to this file")
	flag.Parse()
	switch {
	case *seconds <= 0:
		log.Fatalf("-seconds is %v: want more than 0", *seconds)
	case *format != "both" && *format != "table" && *format != "json":
		log.Fatalf("-format is %q: want both, table or json", *format)
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	results, err := measure(*only, time.Duration(*seconds*float64(time.Second)))
	pprof.StopCPUProfile()
	if err := errors.Join(err, write(os.Stdout, results, *format)); err != nil {
		log.Fatal(err)
	}
}

// measure measures all systems whose servers the environment names. After an error it goes on with the next system.
func measure(only string, limit time.Duration) ([]result, error) {
	var results []result
	var errs []error
	for _, s := range systems {
		address := os.Getenv(s.needs)
		if s.needs != "" && address == "" {
			fmt.Fprintf(os.Stderr, "%s is left out: %s is not set\n", s.name, s.needs)
			continue
		}
		for _, wait := range []time.Duration{0, 5 * time.Millisecond} {
			all, err := s.compare(context.Background(), address, only, size{s.messages, limit}, wait)
			results = append(results, all...)
			if err != nil {
				errs = append(errs, err)
				break
			}
		}
	}
	return results, errors.Join(errs...)
}

func write(w io.Writer, results []result, format string) error {
	if format != "json" {
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(tw, "system\tsubject\thandler\tmessages/s\tx stock\tx raw\tcpu us\t")
		for _, r := range results {
			handler := "no-op"
			if r.Handler != "0s" {
				handler = r.Handler
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%.0f\t%s\t%s\t%.1f\t\n", r.System, r.Subject, handler, r.PerSecond,
				pace.Ratio("%.1f", r.XStock), pace.Ratio("%.2f", r.XRaw), r.CPUMicros)
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	if format == "table" {
		return nil
	}
	return pace.Lines(w, results)
}

// matches reports whether a row is wanted.
func matches(only, system, subject string) bool { return strings.Contains(system+"/"+subject, only) }
