package main

import (
	"context"
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
	flag.DurationVar(&o.Seconds, "limit", 4*time.Second, "the longest round")
	part := flag.String("part", "", "only relay, insert or latency")
	flag.StringVar(&o.Sink, "sink", "", "only this sink of relay")
	asJSON := flag.Bool("json", false, "JSON lines instead of a table")
	flag.Parse()
	if seeds := os.Getenv("HEADRACE_KAFKA_SEEDS"); seeds != "" {
		o.Kafka = strings.Split(seeds, ",")
	}
	run := map[string]func(context.Context, string, relayOptions) ([]relayResult, error){"": benchRelay, "relay": benchSinks, "insert": benchInsert, "latency": benchLatency}[*part]
	results, err := run(context.Background(), os.Getenv("HEADRACE_POSTGRES_URL"), o)
	if werr := writeRelay(os.Stdout, results, *asJSON); werr != nil {
		log.Fatal(werr)
	}
	if err != nil {
		log.Fatal(err)
	}
}
