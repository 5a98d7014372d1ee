package pulsar

import (
	"context"
	"sync"
	"time"
)

// within makes a call of the client, which knows no context, and waits for it until ctx ends. What comes later is undone.
func within[T any](ctx context.Context, running *sync.WaitGroup, call func() (T, error), undo func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var (
		none T
		done = make(chan result)
		gone = make(chan struct{})
	)
	defer close(gone)
	running.Go(func() {
		value, err := call()
		select {
		case done <- result{value, err}:
		case <-gone:
			if err == nil {
				undo(value)
			}
		}
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// waitFor waits for wg, at most for limit, and reports whether it is done.
func waitFor(wg *sync.WaitGroup, limit time.Duration) bool {
	done := make(chan struct{})
	go func() { // ends with the last of wg, which the client's own timeouts end
		wg.Wait()
		close(done)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
