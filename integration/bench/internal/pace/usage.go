package pace

import (
	"fmt"
	"runtime/metrics"
	"sync"
	"syscall"
	"time"
)

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
