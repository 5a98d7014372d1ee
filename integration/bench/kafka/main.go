// Command kafka compares what can consume a Kafka topic: a raw franz-go poll loop, a stock watermill-kafka
// router, and the whole of Headrace without a database. All run in one process against one cluster, one after
// another, on the same records: 1 KiB each, in 8 partitions.
//
//	integration/servers start kafka
//	eval "$(integration/servers env kafka)"
//	go run ./integration/bench/kafka [-n 200000] [-seconds 4] [-full] [-json]
//
// A row is: messages handled per second from the first to the last, processor time and allocations per
// message. Of a row that handles all, the first quarter does not count: what was fetched before the first
// message is no work of that time. The raw loop handles one record after another; a handler that waits shows what that costs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"
)

// result is one line of the output.
type result struct {
	Bench      string  `json:"bench"`
	Subject    string  `json:"subject"`
	Keys       string  `json:"keys"`
	Handler    string  `json:"handler"`
	Window     int     `json:"window"`
	PerSecond  float64 `json:"per_second"`
	CPUMicros  float64 `json:"cpu_us"`
	Allocs     float64 `json:"allocs"`
	TimesStock float64 `json:"x_stock"`
}

func main() {
	n := flag.Int("n", 200_000, "records in each topic")
	seconds := flag.Float64("seconds", 4, "the longest that one row takes")
	full := flag.Bool("full", false, "all handlers, windows and distributions of keys")
	asJSON := flag.Bool("json", false, "JSON lines instead of a table")
	flag.Parse()
	seeds := os.Getenv("HEADRACE_KAFKA_SEEDS")
	if seeds == "" {
		log.Fatal("HEADRACE_KAFKA_SEEDS is not set: run integration/servers start kafka")
	}
	if *n < 1 || *seconds <= 0 {
		log.Fatalf("-n is %d and -seconds is %v: want more than 0", *n, *seconds)
	}
	results, err := measure(strings.Split(seeds, ","), *n, time.Duration(*seconds*float64(time.Second)), *full)
	if err != nil {
		log.Fatal(err)
	}
	if err := write(os.Stdout, results, *asJSON); err != nil {
		log.Fatal(err)
	}
}

func measure(seeds []string, n int, limit time.Duration, full bool) ([]result, error) {
	handlers, windows, dists := []time.Duration{0, 5 * time.Millisecond}, []int{256, 1024}, distributions[:1]
	if full {
		handlers = []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond}
		windows = []int{64, 256, 1024, 4096}
		dists = distributions
	}
	var results []result
	for _, d := range dists {
		topic, err := fill(seeds, n, d)
		if err != nil {
			return nil, fmt.Errorf("fill a topic with keys %s: %w", d.name, err)
		}
		for _, h := range handlers {
			stock := 0.0
			run := func(s subject, window int) error {
				r, err := row(s, &load{seeds: seeds, topic: topic, n: int64(n), wait: h, window: window}, limit)
				if err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
				if s.name == stockName {
					stock = r.PerSecond
				}
				if stock > 0 {
					r.TimesStock = r.PerSecond / stock
				}
				r.Keys, r.Handler, r.Window = d.name, h.String(), window
				results = append(results, r)
				return nil
			}
			if err := errors.Join(run(raw, 1), run(stockRouter, 8)); err != nil {
				return results, err
			}
			for _, w := range windows {
				if err := errors.Join(run(bare, w), run(headrace, w)); err != nil {
					return results, err
				}
			}
		}
	}
	return results, nil
}

// load is a topic to handle, and the handler.
type load struct {
	seeds  []string
	topic  string
	n      int64
	wait   time.Duration
	window int

	handled              atomic.Int64
	first, quarter, last atomic.Int64 // nanoseconds since begin
	begin                time.Time
	done                 chan struct{}
}

// handle handles one message.
func (l *load) handle() {
	l.first.CompareAndSwap(0, int64(time.Since(l.begin)))
	if l.wait > 0 {
		time.Sleep(l.wait)
	}
	switch l.handled.Add(1) {
	case (l.n + 3) / 4:
		l.quarter.Store(int64(time.Since(l.begin)))
	case l.n:
		l.last.Store(int64(time.Since(l.begin)))
		close(l.done)
	}
}

// row runs s on l until all is handled, or for limit after the first message.
func row(s subject, l *load, limit time.Duration) (result, error) {
	l.done = make(chan struct{})
	l.begin = time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := cpuTime()
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx, l) }()
	for l.first.Load() == 0 {
		select {
		case err := <-ended:
			return result{}, fmt.Errorf("it ended before the first message: %w", err)
		case <-time.After(time.Millisecond):
		}
		if time.Since(l.begin) > time.Minute {
			return result{}, errors.New("no message in a minute")
		}
	}
	select {
	case <-l.done:
	case <-time.After(limit):
	}
	handled, from, to := l.handled.Load(), l.first.Load(), l.last.Load()
	counted := handled
	if to == 0 {
		to = int64(time.Since(l.begin))
	} else {
		from, counted = l.quarter.Load(), handled-(l.n+3)/4
	}
	cpu = cpuTime() - cpu
	runtime.ReadMemStats(&after)
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		return result{}, err
	}
	return result{
		Bench:     "kafka",
		Subject:   s.name,
		PerSecond: float64(counted) / time.Duration(to-from).Seconds(),
		CPUMicros: float64(cpu.Microseconds()) / float64(handled),
		Allocs:    float64(after.Mallocs-before.Mallocs) / float64(handled),
	}, nil
}

// cpuTime is what this process has used of processors.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		log.Fatalf("getrusage: %v", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
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
	fmt.Fprintln(tw, "subject\tkeys\thandler\twindow\tmessages/s\tx stock\tcpu us/message\tallocs/message\t")
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%.0f\t%.1f\t%.1f\t%.0f\t\n", r.Subject, r.Keys, r.Handler, r.Window, r.PerSecond, r.TimesStock, r.CPUMicros, r.Allocs)
	}
	return tw.Flush()
}
