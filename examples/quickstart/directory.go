package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"syscall"
	"time"

	"github.com/headrace-go/headrace/classify"
)

// directory stands for a remote service that each handler asks, and that is unwell now and then: for one in
// eight deliveries the first call fails, or the first two, and for one delivery it says when to ask again.
// Which ones depends on their ids only, so that every run has the same failures.
type directory struct {
	mu    sync.Mutex
	calls map[string]int
}

const (
	busyFor   = "delivery-0042"
	busyUntil = 150 * time.Millisecond
)

var errBusy = errors.New("the directory has too many requests")

// lookup finds who sent a delivery. That a reset connection is worth a retry needs no saying: classify knows.
func (d *directory) lookup(ctx context.Context, id, login string) (team string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls[id]++
	switch call := d.calls[id]; {
	case id == busyFor && call == 1:
		return "", classify.RetryAfter(errBusy, busyUntil)
	case call <= failures(id):
		return "", fmt.Errorf("look up %q in the directory: %w", login, syscall.ECONNRESET)
	}
	return "team of " + login, nil
}

// failures is how many calls for a delivery fail: none, one or two.
func failures(id string) int {
	h := fnv.New32a()
	h.Write([]byte(id))
	if sum := h.Sum32(); sum%8 == 0 {
		return 1 + int(sum/8%2)
	}
	return 0
}
