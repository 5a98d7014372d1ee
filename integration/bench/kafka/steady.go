package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
)

// A steady load: handlers that could do twice as much, and some messages that fail a few times before they succeed.
const (
	steadyWindow      = 1024
	steadyConcurrency = 64
	steadyWait        = 5 * time.Millisecond
	steadyPerSecond   = steadyConcurrency * int(time.Second/steadyWait) / 2
	failures          = 3
)

var errNotYet = errors.New("not yet")

// steadyLoads compares the latency of healthy messages without and with one of a hundred that fails.
func steadyLoads(o options) ([]result, error) {
	var results []result
	for _, failing := range []int{0, 100} {
		r, err := steadyLoad(o, failing)
		if err != nil {
			return results, fmt.Errorf("steady load: %w", err)
		}
		results = append(results, r)
	}
	return results, nil
}

// steadyLoad publishes at half of what the handlers can do. Of so many messages as failing says one fails; none if that is 0.
func steadyLoad(o options, failing int) (r result, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cl, err := producer(o.seeds)
	if err != nil {
		return result{}, err
	}
	defer cl.Close()
	name, err := create(ctx, cl)
	if err != nil {
		return result{}, err
	}
	n := int(2 * o.limit.Seconds() * float64(steadyPerSecond))
	t := topic{name: name, keys: distributions[0].name, n: n}
	subjectName := "headrace, 50 % load, none fails"
	if failing > 0 {
		subjectName = "headrace, 50 % load, 1 % fails 3 times"
	}
	var published sync.WaitGroup
	published.Go(func() { publishSteadily(ctx, cl, name, n) })
	defer func() {
		cancel()
		published.Wait()
		err = errors.Join(err, remove(o.seeds, name))
	}()
	return row(subject{subjectName, func(ctx context.Context, l *load) error {
		return onRuntime(ctx, l, steadyConcurrency, func(ctx context.Context, _ []byte) error {
			f := flight.From(ctx)
			number, err := strconv.Atoi(f.View.Metadata[event.MetaID])
			if err != nil {
				return err
			}
			fails := failing > 0 && number%failing == 0
			if fails && f.Attempt <= failures {
				return errNotYet
			}
			l.Handle()
			if !fails {
				l.ackOf(ctx)
			}
			return nil
		})
	}}, newLoad(o.seeds, t, steadyWait, steadyWindow), 3*o.limit)
}

// publishSteadily publishes n records in small steps.
func publishSteadily(ctx context.Context, cl *kgo.Client, topic string, n int) {
	const steps = 200 // in a second
	tick := time.NewTicker(time.Second / steps)
	defer tick.Stop()
	for i := 0; i < n; {
		for range steadyPerSecond / steps {
			cl.Produce(ctx, record(topic, i, distributions[0].key(i)), nil)
			i++
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
