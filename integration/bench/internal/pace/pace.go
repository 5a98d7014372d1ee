// Package pace measures one row of a benchmark: how fast a subject handles the messages of a load, and what that costs this process. What
// a subject is, and what a row is compared with, is the benchmark's.
package pace

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
)

// startLimit is how long the first message may take.
const startLimit = time.Minute

// Load is a number of messages to handle, and the handler. It is for one Run.
type Load struct {
	n    int64
	wait time.Duration

	begin                time.Time
	handled              atomic.Int64
	first, quarter, last atomic.Int64 // when the first, the first quarter and the last were handled, since begin
	done                 chan struct{}
}

// NewLoad returns a load of n messages whose handler waits for each.
func NewLoad(n int, wait time.Duration) *Load {
	return &Load{n: int64(n), wait: wait, begin: time.Now(), done: make(chan struct{})}
}

// Now is the time since Run began, in nanoseconds: at least 1, so that 0 is what has not happened.
func (l *Load) Now() int64 { return max(int64(time.Since(l.begin)), 1) }

// Wait is how long the handler waits.
func (l *Load) Wait() time.Duration { return l.wait }

// Handle handles one message. It is safe for concurrent use.
func (l *Load) Handle() {
	if l.first.Load() == 0 {
		l.first.CompareAndSwap(0, l.Now())
	}
	if l.wait > 0 {
		time.Sleep(l.wait)
	}
	switch l.handled.Add(1) {
	case (l.n + 3) / 4:
		l.quarter.Store(l.Now())
	case l.n:
		l.last.Store(l.Now())
		close(l.done)
	}
}

// Result is what a Run measured.
type Result struct {
	Handled   int64         // messages, those that came twice counted twice
	PerSecond float64       // messages
	CPU       time.Duration // per message, of this process alone
	Allocs    float64       // per message
	Memory    uint64        // bytes: the most that the heap and the stacks held, without what they held before
}

// Run has run handle l until all is handled, or for limit after the first message; then it ends run's context and waits
// for it. run's error is Run's, unless that wraps [context.Canceled].
//
// The rate is from the first message to the last. When all is handled the first quarter does not count: what was fetched before the first
// message is no work of that time.
func (l *Load) Run(ctx context.Context, limit time.Duration, run func(context.Context) error) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	runtime.GC()
	memory := watchMemory()
	defer memory.end()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := cpuTime()
	l.begin = time.Now()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	if err := l.awaitFirst(ended); err != nil {
		cancel()
		return Result{}, err
	}
	select {
	case <-l.done:
	case <-time.After(limit):
	}
	handled, from, to := l.handled.Load(), l.first.Load(), l.last.Load()
	counted := handled
	if to == 0 {
		to = l.Now()
	} else {
		from, counted = l.quarter.Load(), handled-(l.n+3)/4
	}
	cpu = cpuTime() - cpu
	runtime.ReadMemStats(&after)
	peak := memory.end()
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		return Result{}, err
	}
	per := float64(max(handled, 1))
	return Result{
		Handled:   handled,
		PerSecond: float64(counted) / time.Duration(max(to-from, 1)).Seconds(),
		CPU:       time.Duration(float64(cpu) / per),
		Allocs:    float64(after.Mallocs-before.Mallocs) / per,
		Memory:    peak,
	}, nil
}

// awaitFirst waits until the first message is being handled. After an error of its own, run may go on for a while.
func (l *Load) awaitFirst(ended <-chan error) error {
	for l.first.Load() == 0 {
		select {
		case err := <-ended:
			return fmt.Errorf("it ended before the first message: %w", err)
		case <-time.After(time.Millisecond):
		}
		if time.Since(l.begin) > startLimit {
			return fmt.Errorf("no message in %v", startLimit)
		}
	}
	return nil
}
