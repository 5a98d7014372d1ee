package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headrace-go/headrace/internal/testserver"
)

// servers finds the servers of the systems.
var servers = map[string]func(testing.TB) string{
	"HEADRACE_KAFKA_SEEDS":  testserver.Kafka,
	"HEADRACE_NATS_URL":     testserver.NATS,
	"HEADRACE_AMQP_URL":     testserver.AMQP,
	"HEADRACE_REDIS_URL":    testserver.Redis,
	"HEADRACE_SQS_URL":      testserver.SQS,
	"HEADRACE_PULSAR_URL":   testserver.Pulsar,
	"HEADRACE_POSTGRES_URL": testserver.Postgres,
}

// TestEverySubjectHandlesItsTopic runs each row at a small size. That a row has no message twice, on a server that works, is the
// least that its rate needs to mean anything.
func TestEverySubjectHandlesItsTopic(t *testing.T) {
	const n = 200
	for _, y := range systems {
		t.Run(y.name, func(t *testing.T) {
			t.Parallel() // they wait for their handlers most of the time
			address := ""
			if y.needs != "" {
				server := servers[y.needs]
				if server == nil {
					t.Fatalf("no server for %s", y.needs)
				}
				address = server(t)
			}
			if racing && y.name == amqpSystem.name {
				// watermill-amqp has a data race of its own when it is closed: ConnectionWrapper.connected.
				y.subjects = slices.DeleteFunc(slices.Clone(y.subjects), func(s subject) bool { return s.role == stock })
			}
			for _, wait := range []time.Duration{0, time.Millisecond} {
				results, err := y.compare(t.Context(), address, "", size{n, time.Minute}, wait)
				if err != nil {
					t.Fatal(err)
				}
				if len(results) != len(y.subjects) {
					t.Fatalf("handler %v: %d rows, want %d", wait, len(results), len(y.subjects))
				}
				for _, r := range results {
					if r.Handled != n || r.PerSecond <= 0 {
						t.Errorf("%s, handler %s: handled %d at %.0f/s, want %d at a positive rate", r.Subject, r.Handler, r.Handled, r.PerSecond, n)
					}
				}
				last := results[len(results)-1] // Headrace's, beside which all others were measured
				if (y.has(stock) && last.XStock <= 0) || (y.has(raw) && last.XRaw <= 0) {
					t.Errorf("%s: %.2f x stock, %.2f x raw: want ratios", last.Subject, last.XStock, last.XRaw)
				}
			}
		})
	}
}

func (y system) has(r role) bool {
	for _, s := range y.subjects {
		if s.role == r {
			return true
		}
	}
	return false
}

func TestOnlySomeRows(t *testing.T) {
	results, err := memorySystem.compare(t.Context(), "", "memory/headrace", size{100, time.Minute}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 1 || results[0].Subject != "headrace" {
		t.Errorf("rows %+v, want Headrace's", results)
	}
}

func TestOutput(t *testing.T) {
	rows := []result{
		{System: "kafka", Subject: "franz-go poll loop", Handler: "0s", PerSecond: 400, XRaw: 1, CPUMicros: 4.44},
		{System: "kafka", Subject: "headrace", Handler: "5ms", PerSecond: 300, XStock: 25.25, XRaw: 0.75, CPUMicros: 10},
	}
	for format, want := range map[string][]string{
		"table": {"kafka franz-go poll loop no-op 400 - 1.00 4.4", "kafka headrace 5ms 300 25.2 0.75 10.0"},
		"json":  {`"subject":"headrace","handler":"5ms","handled":0,"per_second":300,"x_stock":25.25,"x_raw":0.75,"cpu_us":10}`},
	} {
		var out bytes.Buffer
		if err := write(&out, rows, format); err != nil {
			t.Fatal(err)
		}
		got := out.String()
		if format == "table" {
			got = strings.Join(strings.Fields(got), " ")
		}
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %s\nwant in it: %s", format, got, w)
			}
		}
	}
}
