package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// server is a real server of the run's own, made by integration/servers in a directory of its own, so that each is started and
// stopped beside the others.
type server struct {
	name   string // as integration/servers knows it
	script string
	dir    string
	url    string // as it is, without a proxy; of a node of a cluster: host:port

	mu sync.Mutex // held while it is troubled: it can be that of two pipelines
}

// pidFiles are where the servers keep the numbers of their processes.
var pidFiles = map[string]string{
	"postgres": "postgres/data/postmaster.pid", "kafka": "kafka/pid", "redis": "redis/pid", "nats": "nats/pid", "rabbitmq": "rabbitmq/pid",
	"kafka3a": "kafka3a/pid", "kafka3b": "kafka3b/pid", "kafka3c": "kafka3c/pid",
}

// servers of a run, by name.
type servers map[string]*server

// startServers starts servers, all at the same time, below dir, which their users must be able to see.
func startServers(ctx context.Context, script, dir string, names []string) (servers, error) {
	all, errs := servers{}, make([]error, len(names))
	var starts sync.WaitGroup
	for i, name := range names {
		s := &server{name: name, script: script, dir: filepath.Join(dir, name)}
		if strings.HasPrefix(name, "kafka3") {
			s.dir = filepath.Join(dir, "kafka3") // the nodes must know of one another
		}
		all[name] = s
		if strings.HasPrefix(name, "kafka3") {
			continue
		}
		starts.Go(func() { errs[i] = s.prepare(ctx, name) })
	}
	starts.Wait()
	if a := all["kafka3a"]; a != nil {
		errs = append(errs, a.prepare(ctx, "kafka3a", "kafka3b", "kafka3c"))
		for i, name := range []string{"kafka3a", "kafka3b", "kafka3c"} {
			if seeds := strings.Split(a.url, ","); len(seeds) == 3 {
				all[name].url = seeds[i]
			}
		}
	}
	return all, errors.Join(errs...)
}

// prepare starts the server, or a cluster by its first node, and finds out its address.
func (s *server) prepare(ctx context.Context, names ...string) error {
	if err := s.start(ctx, names...); err != nil {
		return err
	}
	out, err := s.run(ctx, "env", s.name)
	if err != nil {
		return err
	}
	_, out, _ = strings.Cut(out, "'")
	s.url, _, _ = strings.Cut(out, "'")
	if s.url == "" {
		return fmt.Errorf("integration/servers does not tell the address of %s", s.name)
	}
	return nil
}

func (s *server) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.script, args...)
	cmd.Env = append(os.Environ(), "HEADRACE_SERVERS_DIR="+s.dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", s.script, strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}

// start starts the named ones of the server's directory and waits until they are ready. On a busy machine that can take longer than
// the script waits for.
func (s *server) start(ctx context.Context, names ...string) (err error) {
	for range 5 {
		if _, err = s.run(ctx, append([]string{"start"}, names...)...); err == nil {
			return nil
		}
	}
	return err
}

func (s *server) stop(ctx context.Context) error { _, err := s.run(ctx, "stop", s.name); return err }

// bounce ends the server, by a kill or in order, and starts it again after d.
func (s *server) bounce(ctx context.Context, kill bool, d time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.stop
	if kill {
		end = s.kill
	}
	if err := end(ctx); err != nil {
		return err
	}
	pause(ctx, d)
	return s.start(ctx, s.name)
}

// kill sends a signal that the server cannot answer in order, and waits for its end. For Postgres that is SIGQUIT to all of it: pg_ctl
// stop -m immediate, no checkpoint, and the next start recovers from the log.
func (s *server) kill(ctx context.Context) error {
	file := filepath.Join(s.dir, pidFiles[s.name])
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(command), s.dir) {
		return fmt.Errorf("process %d of %s is not ours: %q, %w", pid, file, command, err)
	}
	signal := syscall.SIGKILL
	if s.name == "postgres" {
		signal = syscall.SIGQUIT
	}
	if err := syscall.Kill(pid, signal); err != nil {
		return err
	}
	for range 6000 {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return nil
		}
		pause(ctx, 10*time.Millisecond)
	}
	return fmt.Errorf("%s, process %d, did not end within a minute", s.name, pid)
}

// close stops all and, unless keep, deletes what they wrote.
func (all servers) close(ctx context.Context, keep bool) error {
	ctx = context.WithoutCancel(ctx)
	var mu sync.Mutex
	var errs []error
	var stops sync.WaitGroup
	for _, s := range all {
		stops.Go(func() {
			err := s.stop(ctx)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	stops.Wait()
	if keep {
		return errors.Join(errs...)
	}
	for _, s := range all {
		if _, err := os.Stat(s.dir); err == nil {
			_, err = s.run(ctx, "clean")
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// hostPort is the address in a URL, or in what is one already.
func hostPort(address string) (string, error) {
	if !strings.Contains(address, "://") {
		return address, nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	return u.Host, nil
}

// via is a URL with another host and port.
func via(address, to string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	if _, _, err := net.SplitHostPort(to); err != nil {
		return "", err
	}
	u.Host = to
	return u.String(), nil
}

// pause lasts for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
