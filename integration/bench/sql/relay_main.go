package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"strings"
	"time"
)

// relayMain is the part "relay".
func relayMain() {
	var o relayOptions
	flag.IntVar(&o.Rows, "rows", 50_000, "rows that each relay gets")
	flag.IntVar(&o.Rounds, "rounds", 3, "rounds of each subject; the median counts")
	flag.DurationVar(&o.Limit, "limit", 4*time.Second, "the longest round")
	part := flag.String("part", "", "only relay, insert or latency")
	flag.StringVar(&o.Sink, "sink", "", "only this sink of relay")
	flag.IntVar(&o.Postmaster, "postmaster", 0, "process id of the server, where it is on this machine: insert tells its processor time as well")
	format := formatFlag()
	flag.Parse()
	if seeds := os.Getenv("HEADRACE_KAFKA_SEEDS"); seeds != "" {
		o.Kafka = strings.Split(seeds, ",")
	}
	run := map[string]func(context.Context, string, relayOptions) ([]relayResult, error){
		"": benchRelay, "relay": benchSinks, "insert": benchInsert, "latency": benchLatency,
	}[*part]
	if run == nil || o.Rows < 1 || o.Rounds < 1 || o.Limit <= 0 {
		log.Fatalf("-part %q, -rows %d, -rounds %d, -limit %v: want a part and more than 0", *part, o.Rows, o.Rounds, o.Limit)
	}
	results, err := run(context.Background(), postgresURL(), o)
	if err := errors.Join(err, emit(os.Stdout, *format, results, writeRelay)); err != nil {
		log.Fatal(err)
	}
}
