package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"time"

	"github.com/headrace-go/headrace/integration/bench/internal/pace"
)

// system is a message system, with what is compared on it. A new one is a file of its own and a line in systems.
type system struct {
	name     string // of the adapter's package
	needs    string // the environment variable with the server's address, "": none
	messages int    // of a row with a handler that does nothing, at most
	subjects []subject
}

var systems = []system{memorySystem, kafkaSystem, jetstreamSystem, amqpSystem, redisSystem, sqsSystem, pulsarSystem, postgresSystem}

// role is what a subject is to the others of its system.
type role int

const (
	raw role = iota
	stock
	headrace
)

// subject is one way to handle the messages of a topic.
type subject struct {
	role   role
	name   string
	atOnce int // messages that it handles at once
	// open makes a topic with n messages on the server at address.
	open func(ctx context.Context, address string, n int) (topic, error)
}

// topic is one that was filled. run handles a load's messages until ctx ends; remove deletes the topic and ends what was opened with it.
type topic struct {
	run    func(ctx context.Context, l *pace.Load) error
	remove func() error
}

// result is one line of the output.
type result struct {
	Bench     string  `json:"bench"`
	System    string  `json:"system"`
	Subject   string  `json:"subject"`
	Handler   string  `json:"handler"`
	Handled   int64   `json:"handled"`
	PerSecond float64 `json:"per_second"`
	XStock    float64 `json:"x_stock,omitempty"`
	XRaw      float64 `json:"x_raw,omitempty"`
	CPUMicros float64 `json:"cpu_us"`
}

// size bounds a row.
type size struct {
	messages int
	limit    time.Duration
}

// of is how many messages subject s can handle in time, if each takes wait.
func (z size) of(s subject, wait time.Duration) int {
	if wait == 0 {
		return z.messages
	}
	return max(1, min(z.messages, s.atOnce*int(z.limit/wait)))
}

// compare measures the subjects of a system, whose ratios are to those before it.
func (y system) compare(ctx context.Context, address, only string, z size, wait time.Duration) ([]result, error) {
	var results []result
	rate := map[role]float64{}
	for _, s := range y.subjects {
		if !matches(only, y.name, s.name) {
			continue
		}
		r, err := y.row(ctx, address, s, z, wait)
		if err != nil {
			return results, fmt.Errorf("%s, %s, handler %v: %w", y.name, s.name, wait, err)
		}
		rate[s.role] = r.PerSecond
		if rate[stock] > 0 {
			r.XStock = r.PerSecond / rate[stock]
		}
		if rate[raw] > 0 {
			r.XRaw = r.PerSecond / rate[raw]
		}
		results = append(results, r)
	}
	return results, nil
}

func (y system) row(ctx context.Context, address string, s subject, z size, wait time.Duration) (r result, err error) {
	n := z.of(s, wait)
	t, err := s.open(ctx, address, n)
	if err != nil {
		return result{}, fmt.Errorf("fill a topic with %d messages: %w", n, err)
	}
	defer func() { err = errors.Join(err, t.remove()) }()
	l := pace.NewLoad(n, wait)
	measured, err := l.Run(ctx, z.limit, func(ctx context.Context) (err error) {
		// In a profile, "-tagfocus row=amqp/headrace" leaves the filling out.
		pprof.Do(ctx, pprof.Labels("row", y.name+"/"+s.name+"/"+wait.String()), func(ctx context.Context) { err = t.run(ctx, l) })
		return err
	})
	if err != nil {
		return result{}, err
	}
	return result{
		Bench:     "brokers",
		System:    y.name,
		Subject:   s.name,
		Handler:   wait.String(),
		Handled:   measured.Handled,
		PerSecond: measured.PerSecond,
		CPUMicros: float64(measured.CPU.Nanoseconds()) / 1000,
	}, nil
}
