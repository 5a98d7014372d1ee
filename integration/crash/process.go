package crash

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

// process is a place in the system that always has a process, until the system stops.
type process struct {
	s    *system
	spec spec // of the next process; its name is the place's

	mu      sync.Mutex
	runs    int
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	meant   bool  // the end that comes is the runner's doing
	armed   point // where it is to die
	stopped bool
	ended   chan struct{} // no process will come any more
}

// start starts the place's first or next process. mu is held.
func (p *process) start() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	p.runs++
	told := p.spec
	told.Name = fmt.Sprintf("%s.%d", p.spec.Name, p.runs)
	told.History = filepath.Join(p.s.dir, told.Name+".jsonl")
	told.Seed += uint64(p.runs)
	told.Paused = p.s.paused.Load()
	told.Lease = p.s.Lease
	text, err := json.Marshal(told)
	if err != nil {
		return err
	}
	stderr, err := os.OpenFile(filepath.Join(p.s.dir, p.spec.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.WithoutCancel(p.s.ctx), exe)
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	cmd.Stdout, cmd.Stderr = stderr, stderr
	p.stdin, err = cmd.StdinPipe() // its end is the process's, so that none outlives the runner
	if err == nil {
		err = cmd.Start()
	}
	if err = errors.Join(err, stderr.Close()); err != nil {
		return fmt.Errorf("start %s: %w", told.Name, err)
	}
	p.cmd, p.meant, p.armed = cmd, false, ""
	return nil
}

// keep starts the next process whenever one ends.
func (p *process) keep() {
	defer close(p.ended)
	for {
		err := p.cmd.Wait()
		p.mu.Lock()
		if p.armed != "" && p.cmd.ProcessState.ExitCode() < 0 {
			p.s.count(diedAt(p.armed))
		}
		switch {
		case p.stopped && !p.meant && err != nil && !terminated(p.cmd.ProcessState):
			p.s.fail(fmt.Errorf("%s did not stop in order: %w", p.spec.Name, err))
		case p.stopped:
		case !p.meant || p.cmd.ProcessState.ExitCode() > 0: // -1 is a signal
			p.s.count("exits by itself")
			p.s.log("%s ended by itself: %v", p.spec.Name, err)
		}
		stopped, meant := p.stopped, p.meant
		p.mu.Unlock()
		if stopped {
			return
		}
		if !meant { // as an orchestrator backs off
			wait(p.s.ctx, 300*time.Millisecond)
		}
		p.mu.Lock()
		if p.stopped {
			p.mu.Unlock()
			return
		}
		err = p.start()
		p.mu.Unlock()
		if err != nil {
			p.s.fail(err)
			return
		}
	}
}

// terminated tells whether SIGTERM ended the process: it had just started, and did not listen yet.
func terminated(state *os.ProcessState) bool {
	status, ok := state.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGTERM
}

// signal sends a signal to the process that is there now. ends: it will end by that.
func (p *process) signal(sig syscall.Signal, ends bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ends {
		p.meant, p.armed = true, ""
	}
	// One that has just ended is no error.
	_ = p.cmd.Process.Signal(sig)
}

// tell sends a command.
func (p *process) tell(command string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = io.WriteString(p.stdin, command+"\n") // likewise
}

// dieAt makes the process die when it comes to a point.
func (p *process) dieAt(at point) {
	p.mu.Lock()
	p.meant, p.armed = true, at
	p.mu.Unlock()
	p.tell(string(at))
}

// waits tells whether the process is still to die at a point.
func (p *process) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.armed != ""
}

// stop ends the process in order, for good.
func (p *process) stop() {
	p.mu.Lock()
	p.stopped = true
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	p.mu.Unlock()
}

// kill ends it whatever it does.
func (p *process) kill() {
	p.mu.Lock()
	p.stopped, p.armed = true, ""
	_ = p.cmd.Process.Kill()
	p.mu.Unlock()
}
