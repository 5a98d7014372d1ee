package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// place is a place in a pipeline that always has a process, until it is left.
type place struct {
	p    *pipeline
	spec spec // of its processes; its name is the place's

	mu    sync.Mutex
	runs  int
	cmd   *exec.Cmd
	stdin io.Closer
	// meant is the signal that is to end the process; termed is when it was asked to stop in order.
	meant  syscall.Signal
	termed time.Time
	left   bool          // no process comes any more
	ended  chan struct{} // nor is one there
	gone   chan struct{} // closed when the present process has ended
}

// log is the file of what the place's processes say.
func (l *place) log() string { return filepath.Join(l.p.r.dir, l.spec.Name+".log") }

// start starts the place's first or next process. mu is held, or nobody else knows the place.
func (l *place) start() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	l.runs++
	told := l.spec
	told.Name, told.Place = fmt.Sprintf("%s.%d", l.spec.Name, l.runs), l.spec.Name
	told.History = filepath.Join(l.p.r.dir, told.Name+".jsonl")
	told.Seed += uint64(l.runs)
	text, err := json.Marshal(told)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(l.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.WithoutCancel(l.p.r.ctx), exe)
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	cmd.Stdout, cmd.Stderr = out, out
	l.stdin, err = cmd.StdinPipe() // its end is the process's, so that none outlives us
	if err == nil {
		err = cmd.Start()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("start %s: %w", told.Name, err)
	}
	l.cmd, l.meant, l.termed, l.gone = cmd, 0, time.Time{}, make(chan struct{})
	return nil
}

// open makes a place and starts its first process.
func (p *pipeline) open(r role, i int) (*place, error) {
	l := &place{p: p, spec: p.spec, ended: make(chan struct{})}
	l.spec.Role, l.spec.Name = r, fmt.Sprintf("%s-%s-%d", p.spec.Pipeline, r, i)
	if err := l.start(); err != nil {
		return nil, err
	}
	go l.keep()
	return l, nil
}

// keep starts the next process whenever one ends, as an orchestrator would, and judges how each ended.
func (l *place) keep() {
	defer close(l.ended)
	for {
		_ = l.cmd.Wait() // the state tells
		l.mu.Lock()
		meant := l.meant
		l.judge(l.cmd.ProcessState)
		close(l.gone)
		left := l.left
		l.mu.Unlock()
		if left {
			return
		}
		if meant == 0 { // it backs off
			pause(l.p.r.ctx, 300*time.Millisecond)
		}
		l.mu.Lock()
		if l.left {
			l.mu.Unlock()
			return
		}
		err := l.start()
		l.mu.Unlock()
		if err != nil {
			l.p.r.fail(err)
			return
		}
	}
}

// judge counts how a process ended, and reports what must not be. mu is held.
func (l *place) judge(state *os.ProcessState) {
	l.p.count(counts{processes: 1})
	status, _ := state.Sys().(syscall.WaitStatus)
	name := fmt.Sprintf("%s.%d", l.spec.Name, l.runs)
	switch {
	case status.Signaled() && l.meant == status.Signal(): // by SIGTERM only if it had just begun, and did not listen yet
	case l.meant == syscall.SIGKILL: // it was quicker
	case state.ExitCode() == exitNotBegun:
		l.p.count(counts{notBegun: 1})
	case l.meant == syscall.SIGTERM && state.ExitCode() == 0:
		took := time.Since(l.termed)
		l.p.drained(took)
		if took > drainLimit+exitGrace {
			l.p.broken("%s took %v to stop in order, want at most %v: see %s", name, took.Round(time.Millisecond), drainLimit+exitGrace, l.log())
		}
	case l.meant == syscall.SIGTERM:
		l.p.broken("%s was stopped in order and ended with %v: see %s", name, state, l.log())
	default:
		l.p.broken("%s ended by itself with %v: see %s", name, state, l.log())
	}
}

// signal sends a signal to the process that is there now.
func (l *place) signal(sig syscall.Signal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch sig {
	case syscall.SIGTERM:
		l.meant, l.termed = sig, time.Now()
	case syscall.SIGKILL:
		l.meant = sig
	default:
	}
	_ = l.cmd.Process.Signal(sig) // one that has just ended is no error
}

// restart stops the process in order and waits until it is gone; another one comes.
func (l *place) restart() error {
	l.mu.Lock()
	gone := l.gone
	l.mu.Unlock()
	l.signal(syscall.SIGTERM)
	return l.await(gone)
}

// leave stops the process in order, for good.
func (l *place) leave() {
	l.mu.Lock()
	l.left = true
	l.mu.Unlock()
	l.signal(syscall.SIGTERM)
}

// kill ends it for good, whatever it does.
func (l *place) kill() {
	l.mu.Lock()
	l.left = true
	l.mu.Unlock()
	l.signal(syscall.SIGKILL)
	<-l.ended
}

// await waits for the end of a process that stops in order. It does not wait for ever: one that hangs is killed, and told.
func (l *place) await(gone <-chan struct{}) error {
	limit := time.NewTimer(drainLimit + exitGrace + 20*time.Second)
	defer limit.Stop()
	select {
	case <-gone:
		return nil
	case <-l.p.r.ctx.Done():
		return context.Cause(l.p.r.ctx)
	case <-limit.C:
	}
	l.p.broken("%s does not stop: see the stacks in %s", l.spec.Name, l.log())
	l.mu.Lock()
	_ = l.cmd.Process.Signal(syscall.SIGQUIT) // it may have ended meanwhile
	l.mu.Unlock()
	select {
	case <-gone:
	case <-time.After(5 * time.Second):
		l.signal(syscall.SIGKILL)
		<-gone
	}
	return nil
}
