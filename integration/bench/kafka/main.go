// Command kafka compares what can consume a Kafka topic: a raw franz-go poll loop, a stock watermill-kafka
// router, this adapter on a bare router, and the whole of Headrace without a database. All run in one process
// against one cluster, one after another, on the same records: 1 KiB each, in 8 partitions.
//
//	integration/servers start kafka
//	eval "$(integration/servers env kafka)"
//	go run ./integration/bench/kafka [-n 800000] [-seconds 4] [-full] [-format both|table|json]
//
// The columns, which JSON lines have as well:
//
//   - messages/s from the first message to the last. Of a row that handles all, the first quarter does not count: what was
//     fetched before the first message is no work of that time.
//   - x stock, x raw: the ratio to those two with the same handler and keys.
//   - of ideal: the ratio to what no consumer can exceed that keeps the order of a key: the window, or as many keys as are
//     busy, divided by the handler's time.
//   - CPU (user and system, this process alone) and allocations per message.
//   - ack p50, p99, p999: from the moment at which the client library handed the record out to its ack, of every 16th record after the
//     first quarter.
//     A topic that is read as fast as possible fills all buffers, which are part of it.
//   - memory: the most that the heap and the stacks held, without what they held before.
//
// The raw loop handles one record after another; a handler that waits shows what that costs. The last rows are a load at half of what the
// handlers can do, without and with one message of a hundred failing three times: their latencies are of the messages that do not fail.
package main

import (
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

// result is one line of the output.
type result struct {
	Bench     string  `json:"bench"`
	Subject   string  `json:"subject"`
	Keys      string  `json:"keys"`
	Handler   string  `json:"handler"`
	Window    int     `json:"window"`
	PerSecond float64 `json:"per_second"`
	XStock    float64 `json:"x_stock,omitempty"`
	XRaw      float64 `json:"x_raw,omitempty"`
	OfIdeal   float64 `json:"of_ideal,omitempty"`
	CPUMicros float64 `json:"cpu_us"`
	Allocs    float64 `json:"allocs"`
	P50       float64 `json:"ack_p50_ms"`
	P99       float64 `json:"ack_p99_ms"`
	P999      float64 `json:"ack_p999_ms"`
	MemoryMB  float64 `json:"memory_mb"`
}

type options struct {
	seeds []string
	n     int
	limit time.Duration
	full  bool
	only  string
}

func main() {
	n := flag.Int("n", 800_000, "records in each topic")
	seconds := flag.Float64("seconds", 4, "the longest that one row takes")
	full := flag.Bool("full", false, "all handlers, windows and distributions of keys")
	only := flag.String("only", "", "only the subjects whose names contain this")
	format := flag.String("format", "both", "table, json (lines), or both")
	profile := flag.String("cpuprofile", "", "write a CPU profile to this file")
	allocs := flag.String("memprofile", "", "write a profile of all allocations to this file")
	flag.Parse()
	seeds := os.Getenv("HEADRACE_KAFKA_SEEDS")
	switch {
	case seeds == "":
		log.Fatal("HEADRACE_KAFKA_SEEDS is not set: run integration/servers start kafka")
	case *n < 1 || *seconds <= 0:
		log.Fatalf("-n is %d and -seconds is %v: want more than 0", *n, *seconds)
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
	results, err := measure(options{strings.Split(seeds, ","), *n, time.Duration(*seconds * float64(time.Second)), *full, *only})
	pprof.StopCPUProfile()
	if *allocs != "" {
		f, ferr := os.Create(*allocs)
		if ferr == nil {
			ferr = errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
		}
		err = errors.Join(err, ferr)
	}
	if err := errors.Join(err, write(os.Stdout, results, *format)); err != nil {
		log.Fatal(err)
	}
}

func measure(o options) ([]result, error) {
	handlers, windows, dists := []time.Duration{0, 5 * time.Millisecond}, []int{256, 1024}, distributions[:1]
	if o.full {
		handlers = []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond}
		windows = []int{64, 256, 1024, 4096}
		dists = distributions
	}
	var results []result
	for _, d := range dists {
		all, err := onTopic(o, d, handlers, windows)
		results = append(results, all...)
		if err != nil {
			return results, err
		}
	}
	if !strings.Contains(headrace.name, o.only) {
		return results, nil
	}
	steady, err := steadyLoads(o)
	return append(results, steady...), err
}

// onTopic makes a topic with keys of distribution d and compares everything on it.
func onTopic(o options, d distribution, handlers []time.Duration, windows []int) (results []result, err error) {
	t, err := fill(o.seeds, o.n, d)
	if err != nil {
		return nil, fmt.Errorf("fill a topic with keys %s: %w", d.name, err)
	}
	defer func() { err = errors.Join(err, remove(o.seeds, t.name)) }()
	for _, h := range handlers {
		all, err := compare(o, t, h, windows)
		results = append(results, all...)
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

// compare runs all subjects with one handler on one topic.
func compare(o options, t topic, wait time.Duration, windows []int) ([]result, error) {
	var results []result
	stock, rawLoop := 0.0, 0.0
	run := func(s subject, window int) error {
		if !strings.Contains(s.name, o.only) {
			return nil
		}
		r, err := row(s, newLoad(o.seeds, t, wait, window), o.limit)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		switch s.name {
		case stockRouter.name:
			stock = r.PerSecond
		case raw.name:
			rawLoop = r.PerSecond
		}
		if stock > 0 {
			r.XStock = r.PerSecond / stock
		}
		if rawLoop > 0 {
			r.XRaw = r.PerSecond / rawLoop
		}
		if wait > 0 {
			r.OfIdeal = r.PerSecond / (min(float64(window), t.busyKeys) / wait.Seconds())
		}
		results = append(results, r)
		return nil
	}
	if err := errors.Join(run(raw, 1), run(stockRouter, partitions)); err != nil {
		return results, err
	}
	for _, w := range windows {
		if err := errors.Join(run(bare, w), run(headrace, w)); err != nil {
			return results, err
		}
	}
	return results, nil
}

func write(w io.Writer, results []result, format string) error {
	if format != "json" {
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(tw, "subject\tkeys\thandler\twindow\tmessages/s\tx stock\tx raw\tof ideal\tcpu us\tallocs\tack p50 ms\tp99\tp999\tMB\t")
		for _, r := range results {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%.0f\t%s\t%s\t%s\t%.1f\t%.0f\t%.1f\t%.1f\t%.1f\t%.0f\t\n", r.Subject, r.Keys, r.Handler, r.Window, r.PerSecond,
				pace.Ratio("%.1f", r.XStock), pace.Ratio("%.2f", r.XRaw), pace.Ratio("%.0f %%", 100*r.OfIdeal), r.CPUMicros, r.Allocs, r.P50, r.P99, r.P999, r.MemoryMB)
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
