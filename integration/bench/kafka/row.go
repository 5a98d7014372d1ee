package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// load is a topic to handle, and the handler.
type load struct {
	seeds  []string
	topic  topic
	n      int64
	wait   time.Duration
	window int

	begin                time.Time
	handled              atomic.Int64
	first, quarter, last atomic.Int64 // when the first, the first quarter and the last were handled, since begin
	done                 chan struct{}
	latency              latency
}

func newLoad(seeds []string, t topic, wait time.Duration, window int) *load {
	l := &load{seeds: seeds, topic: t, n: int64(t.n), wait: wait, window: window, begin: time.Now(), done: make(chan struct{})}
	for p := range l.latency.fetched {
		l.latency.fetched[p] = make([]atomic.Int64, t.n/sampled+1)
	}
	return l
}

func (l *load) now() int64 { return int64(time.Since(l.begin)) }

// handle handles one message.
func (l *load) handle() {
	if l.first.Load() == 0 {
		l.first.CompareAndSwap(0, l.now())
	}
	if l.wait > 0 {
		time.Sleep(l.wait)
	}
	switch l.handled.Add(1) {
	case (l.n + 3) / 4:
		l.quarter.Store(l.now())
	case l.n:
		l.last.Store(l.now())
		close(l.done)
	}
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
		l.latency.fetched[partition][offset/sampled].Store(l.now())
	}
}

// ack tells that a record was acked, or will be when acked is closed. The first quarter does not count: a part of it waited for the
// consumer to join.
func (l *load) ack(partition int32, offset int64, acked <-chan struct{}) {
	if offset%sampled != 0 || offset/sampled >= int64(len(l.latency.fetched[partition])) || offset < l.n/partitions/4 {
		return
	}
	at := l.latency.fetched[partition][offset/sampled].Load()
	note := func() {
		took := l.now() - at
		l.latency.mu.Lock()
		defer l.latency.mu.Unlock()
		l.latency.all = append(l.latency.all, time.Duration(took))
	}
	if acked == nil {
		note()
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
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	runtime.GC()
	memory := watchMemory()
	defer memory.end()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := cpuTime()
	l.begin = time.Now()
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
		to = l.now()
	} else {
		from, counted = l.quarter.Load(), handled-(l.n+3)/4
	}
	cpu = cpuTime() - cpu
	runtime.ReadMemStats(&after)
	peak := memory.end()
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		return result{}, err
	}
	r := result{
		Bench:     "kafka",
		Subject:   s.name,
		Keys:      l.topic.keys,
		Handler:   l.wait.String(),
		Window:    l.window,
		PerSecond: float64(counted) / time.Duration(to-from).Seconds(),
		CPUMicros: float64(cpu.Microseconds()) / float64(handled),
		Allocs:    float64(after.Mallocs-before.Mallocs) / float64(handled),
		MemoryMB:  float64(peak) / (1 << 20),
	}
	r.P50, r.P99, r.P999 = l.latency.percentiles()
	return r, nil
}

// cpuTime is what this process has used of processors.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(fmt.Sprintf("getrusage: %v", err)) // of an own process it cannot fail
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// memoryWatch looks at the memory in use all the time.
type memoryWatch struct {
	stop, stopped chan struct{}
	once          sync.Once
	peak          uint64
}

func watchMemory() *memoryWatch {
	w := &memoryWatch{stop: make(chan struct{}), stopped: make(chan struct{})}
	base := memoryInUse()
	go func() {
		defer close(w.stopped)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			if now := memoryInUse(); now > base {
				w.peak = max(w.peak, now-base)
			}
			select {
			case <-tick.C:
			case <-w.stop:
				return
			}
		}
	}()
	return w
}

// end returns the most that was in use beyond what was in use at first.
func (w *memoryWatch) end() uint64 {
	w.once.Do(func() { close(w.stop) })
	<-w.stopped
	return w.peak
}

func memoryInUse() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() + samples[1].Value.Uint64()
}
