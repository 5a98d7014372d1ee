package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace-go/headrace/integration/bench/internal/pace"
)

// load is a topic to handle, and the handler.
type load struct {
	*pace.Load
	seeds   []string
	topic   topic
	window  int
	latency latency
}

func newLoad(seeds []string, t topic, wait time.Duration, window int) *load {
	l := &load{Load: pace.NewLoad(t.n, wait), seeds: seeds, topic: t, window: window}
	for p := range l.latency.fetched {
		l.latency.fetched[p] = make([]atomic.Int64, t.n/sampled+1)
	}
	return l
}

// sampled is which part of the records has its latency measured: one of so many in each partition.
const sampled = 16

// latency collects how long records take from the fetch to the ack.
type latency struct {
	fetched [partitions][]atomic.Int64 // when, since begin, by offset / sampled
	waiting sync.WaitGroup             // for acks

	mu  sync.Mutex
	all []time.Duration
}

// fetch tells that a record was fetched.
func (l *load) fetch(partition int32, offset int64) {
	if offset%sampled == 0 && offset/sampled < int64(len(l.latency.fetched[partition])) {
		l.latency.fetched[partition][offset/sampled].Store(l.Now())
	}
}

// ack tells that a record is acked when acked is closed.
func (l *load) ack(partition int32, offset int64, acked <-chan struct{}) {
	note := l.noteOf(partition, offset)
	if note == nil {
		return
	}
	l.latency.waiting.Go(func() {
		select {
		case <-acked:
			note()
		case <-time.After(time.Minute): // it was given back
		}
	})
}

// noteOf returns what is to be called when a record was acked, or nil if it is not sampled. The first quarter does not count: a part of it
// waited for the consumer to join.
func (l *load) noteOf(partition int32, offset int64) func() {
	if offset%sampled != 0 || offset/sampled >= int64(len(l.latency.fetched[partition])) || offset < int64(l.topic.n)/partitions/4 {
		return nil
	}
	return func() {
		took := l.Now() - l.latency.fetched[partition][offset/sampled].Load()
		l.latency.mu.Lock()
		defer l.latency.mu.Unlock()
		l.latency.all = append(l.latency.all, time.Duration(took))
	}
}

// percentiles returns them in milliseconds.
func (l *latency) percentiles() (p50, p99, p999 float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return 0, 0, 0
	}
	slices.Sort(l.all)
	at := func(p float64) float64 {
		return float64(l.all[int(p*float64(len(l.all)-1))].Microseconds()) / 1000
	}
	return at(0.5), at(0.99), at(0.999)
}

// row runs s on l until all is handled, or for limit after the first message.
func row(s subject, l *load, limit time.Duration) (result, error) {
	measured, err := l.Run(context.Background(), limit, func(ctx context.Context) error { return s.run(ctx, l) })
	if err != nil {
		return result{}, err
	}
	r := result{
		Bench:     "kafka",
		Subject:   s.name,
		Keys:      l.topic.keys,
		Handler:   l.Wait().String(),
		Window:    l.window,
		PerSecond: measured.PerSecond,
		CPUMicros: float64(measured.CPU.Nanoseconds()) / 1000,
		Allocs:    measured.Allocs,
		MemoryMB:  float64(measured.Memory) / (1 << 20),
	}
	r.P50, r.P99, r.P999 = l.latency.percentiles()
	return r, nil
}
