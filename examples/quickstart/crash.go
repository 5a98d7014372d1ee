package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// supervise runs the job in two processes on one data directory. The first kills itself half-way, the second goes on.
func supervise(ctx context.Context, o options, _, stderr io.Writer) (*report, error) {
	start := time.Now()
	input, err := buildInput()
	if err != nil {
		return nil, err
	}
	before, err := ledgerOf(ctx, o.data)
	if err != nil {
		return nil, err
	}
	half := len(expect(input).effects) / 2
	if int(before.Effects) >= half {
		return nil, fmt.Errorf("-crash: -data %s has %d effects already, half of them are %d: use an empty directory", o.data, before.Effects, half)
	}
	first, err := spawn(ctx, o, stderr, "-kill-at", strconv.Itoa(half))
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil, errors.New("-crash: the first process ended before it was killed")
	case !errors.As(err, &exit) || exit.Exited():
		return nil, fmt.Errorf("-crash: the first process was to be killed: %w", err)
	}
	fmt.Fprintf(stderr, "the first process was killed at %d effects; a second one goes on\n", half)

	second, ran := spawn(ctx, o, stderr)
	if ran != nil {
		ran = fmt.Errorf("-crash: the second process: %w", ran)
	}
	if first == nil || second == nil {
		return nil, errors.Join(ran, errors.New("-crash: a process told no numbers"))
	}
	after, err := ledgerOf(context.WithoutCancel(ctx), o.data)
	if err != nil {
		return nil, errors.Join(ran, err)
	}
	total := after.since(before)
	for _, r := range []*report{first, second} {
		total.Deliveries += r.Deliveries
		total.Duplicates += r.Duplicates
		total.Retries += r.Retries
	}
	total.OrderViolations, total.Lost = second.OrderViolations, second.Lost
	total.ElapsedMS = time.Since(start).Milliseconds()
	return total, ran
}

// spawn runs this program again and returns the report that it prints.
func spawn(ctx context.Context, o options, stderr io.Writer, args ...string) (*report, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args = append(args, "-json", "-data", o.data, "-timeout", o.timeout.String())
	if o.verbose {
		args = append(args, "-v")
	}
	if o.trace {
		args = append(args, "-trace")
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = o.timeout
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, stderr
	ran := cmd.Run()
	if out.Len() == 0 {
		return nil, ran
	}
	r := &report{}
	if err := json.Unmarshal(out.Bytes(), r); err != nil {
		return nil, errors.Join(ran, fmt.Errorf("read the report of the process: %w", err))
	}
	return r, ran
}

// ledgerOf reads the ledger of a data directory that nobody works on, which may be empty.
func ledgerOf(ctx context.Context, data string) (l ledger, err error) {
	j := &job{options: options{data: data}}
	defer func() { err = errors.Join(err, j.close()) }()
	if err := j.openStores(ctx); err != nil {
		return l, err
	}
	return readLedger(ctx, j.producerDB.DB(), j.tracked.DB())
}

// killAt kills this process without any goodbye once it has committed so many effects, after it has told its
// numbers. The function that it returns gives that up.
func (j *job) killAt(effects int, stdout io.Writer) (stop func()) {
	end := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		look := time.NewTicker(time.Millisecond)
		defer look.Stop()
		for {
			select {
			case <-end:
				return
			case <-look.C:
			}
			if s := j.webhooks.Stats(); s.Effects >= int64(effects) {
				r := &report{}
				r.add(s)
				if err := r.writeJSON(stdout); err != nil {
					panic(err)
				}
				kill()
			}
		}
	})
	return func() { close(end); watching.Wait() }
}

// kill is SIGKILL on Unix: nothing is flushed, no deferred function runs.
func kill() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(fmt.Errorf("kill this process: %w", err))
	}
	select {}
}
