// Command bench compares the cost of one message: through a bare Watermill router, through Watermill's own
// middleware, and through the whole of Headrace. Everything runs in one process and in turns, so that a
// noisy machine disturbs all subjects alike; the medians of the rounds are printed.
//
//	go run ./integration/bench [-n 100000] [-rounds 5] [-json]
//
// Messages are CloudEvents of 256 bytes with 1,000 keys on brokers/memory, published before the clock
// starts. Handlers do nothing.
package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"
)

// result is one line of the output; later benchmarks keep its form.
type result struct {
	Bench   string `json:"bench"`
	Subject string `json:"subject"`
	NS      int64  `json:"ns"`
	Bytes   int64  `json:"bytes"`
	Allocs  int64  `json:"allocs"`
}

func main() {
	n := flag.Int("n", 100_000, "messages in a round")
	rounds := flag.Int("rounds", 5, "rounds of each subject; the median counts")
	asJSON := flag.Bool("json", false, "JSON lines instead of a table")
	flag.Parse()
	if *n < 1 || *rounds < 1 {
		log.Fatalf("-n is %d and -rounds is %d: want at least 1", *n, *rounds)
	}
	results, err := measure(*n, *rounds)
	if err != nil {
		log.Fatal(err)
	}
	if err := write(os.Stdout, results, *asJSON); err != nil {
		log.Fatal(err)
	}
}

// measure runs every subject in turns.
func measure(n, rounds int) ([]result, error) {
	samples := make([][]result, len(subjects))
	for round := range rounds + 1 {
		for i, s := range subjects {
			r, err := sample(s, n)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			if round > 0 { // the first one warms up
				samples[i] = append(samples[i], r)
			}
		}
	}
	medians := make([]result, len(subjects))
	for i, s := range samples {
		slices.SortFunc(s, func(a, b result) int { return cmp.Compare(a.NS, b.NS) })
		medians[i] = s[len(s)/2]
	}
	return medians, nil
}

// sample runs one subject once over n messages and gives the cost of one.
func sample(s subject, n int) (result, error) {
	load, err := newLoad(n)
	if err != nil {
		return result{}, err
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	if err := s.run(load); err != nil {
		return result{}, err
	}
	elapsed := time.Since(start)
	runtime.ReadMemStats(&after)
	if got := load.handled.Load(); got != int64(n) {
		return result{}, fmt.Errorf("handled %d messages of %d", got, n)
	}
	return result{
		Bench:   "message",
		Subject: s.name,
		NS:      elapsed.Nanoseconds() / int64(n),
		Bytes:   int64(after.TotalAlloc-before.TotalAlloc) / int64(n),
		Allocs:  int64(after.Mallocs-before.Mallocs) / int64(n),
	}, nil
}

func write(w io.Writer, results []result, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		for _, r := range results {
			if err := enc.Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "subject\tns/message\tB/message\tallocs/message\tx bare\tx stock\t")
	bare, stock := float64(results[0].NS), float64(results[stockIndex].NS)
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%.2f\t%.2f\t\n", r.Subject, r.NS, r.Bytes, r.Allocs, float64(r.NS)/bare, float64(r.NS)/stock)
	}
	return tw.Flush()
}
