package main

import (
	"context"
	"encoding/csv"
	"io"
	"os"
	"runtime/metrics"
	"slices"
	"strconv"
	"sync"
	"time"
)

// sample is what was measured at one moment, and since the one before.
type sample struct {
	seconds    float64 // since the first
	perSecond  float64 // messages whose way through both consumers ended
	waiting    float64 // messages that were published and did not get to their end
	p50, p99   float64 // ms from the publishing of a message to its end in the second consumer
	heap       float64 // MiB that were alive after the last collection
	memory     float64 // MiB that the Go runtime has from the system
	goroutines float64
	files      float64 // open file descriptors
	tables     float64 // MiB of the inbox and the outbox
}

// columns are the fields of a sample, in the order of the CSV file.
var columns = []struct {
	name string
	of   func(sample) float64
}{
	{"seconds", func(s sample) float64 { return s.seconds }},
	{"messages_per_second", func(s sample) float64 { return s.perSecond }},
	{"waiting", func(s sample) float64 { return s.waiting }},
	{"p50_ms", func(s sample) float64 { return s.p50 }},
	{"p99_ms", func(s sample) float64 { return s.p99 }},
	{"heap_mib", func(s sample) float64 { return s.heap }},
	{"memory_mib", func(s sample) float64 { return s.memory }},
	{"goroutines", func(s sample) float64 { return s.goroutines }},
	{"files", func(s sample) float64 { return s.files }},
	{"tables_mib", func(s sample) float64 { return s.tables }},
}

// watch takes samples until ctx ends.
func watch(ctx context.Context, s *service, every time.Duration) ([]sample, error) {
	var all []sample
	began, before, count := time.Now(), time.Now(), s.ended.Load()
	s.latency.take()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return all, nil
		case <-tick.C:
		}
		now, ended := time.Now(), s.ended.Load()
		x := sample{
			seconds:   now.Sub(began).Seconds(),
			perSecond: float64(ended-count) / now.Sub(before).Seconds(),
			waiting:   float64(s.underway()),
		}
		before, count = now, ended
		x.p50, x.p99 = s.latency.take()
		x.heap, x.memory, x.goroutines = process()
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return all, err
		}
		x.files = float64(len(files))
		if x.tables, err = s.tables(ctx); err != nil && ctx.Err() == nil {
			return all, err
		}
		s.collect(ctx)
		all = append(all, x)
	}
}

// process returns MiB of live heap, MiB in all, and the number of goroutines.
func process() (heap, memory, goroutines float64) {
	read := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/sched/goroutines:goroutines"},
	}
	metrics.Read(read)
	const mib = 1 << 20
	value := func(i int) float64 { return float64(read[i].Value.Uint64()) }
	return value(0) / mib, (value(1) - value(2)) / mib, value(3)
}

// latencies collects the latencies between two samples.
type latencies struct {
	mu  sync.Mutex
	all []time.Duration
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, d)
}

// take returns the percentiles, in milliseconds, of what was added since the last call.
func (l *latencies) take() (p50, p99 float64) {
	l.mu.Lock()
	all := slices.Clone(l.all)
	l.all = l.all[:0]
	l.mu.Unlock()
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	at := func(p float64) float64 { return float64(all[int(p*float64(len(all)-1))].Microseconds()) / 1000 }
	return at(0.5), at(0.99)
}

func writeCSV(w io.Writer, samples []sample) error {
	out := csv.NewWriter(w)
	row := make([]string, len(columns))
	for i, c := range columns {
		row[i] = c.name
	}
	if err := out.Write(row); err != nil {
		return err
	}
	for _, s := range samples {
		for i, c := range columns {
			row[i] = strconv.FormatFloat(c.of(s), 'f', 2, 64)
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
