package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// application is the name of the system's connections.
	application = "headrace-crash"
	space       = "crash" // the tablespace
)

// server is a Postgres of the run's own, by integration/servers.
type server struct {
	script string
	dir    string
	url    string
	// disk is the folder of the small file system that the tables are on; "" where there is none.
	disk string
}

// startServer makes and starts a server in dir, which the server's user must be able to see. script is the path
// of integration/servers. diskMiB is the size of a file system for the tables, which takes root.
func startServer(ctx context.Context, script, dir string, diskMiB int) (_ *server, err error) {
	s := &server{script: script, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.remove(ctx))
		}
	}()
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	out, err := s.run(ctx, "env", "postgres")
	if err != nil {
		return nil, err
	}
	_, out, _ = strings.Cut(out, "'")
	s.url, _, _ = strings.Cut(out, "'")
	if err := s.mount(ctx, diskMiB); err != nil || s.disk == "" {
		return s, err
	}
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	if _, err := conn.Exec(ctx, "CREATE TABLESPACE "+space+" LOCATION '"+filepath.Join(s.disk, "tables")+"'"); err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, "ALTER DATABASE "+conn.Config().Database+" SET default_tablespace = '"+space+"'")
	return s, err
}

// mount makes the small file system, where it may.
func (s *server) mount(ctx context.Context, mib int) error {
	if mib == 0 || os.Getuid() != 0 {
		return nil
	}
	disk := filepath.Join(s.dir, "disk")
	if err := os.MkdirAll(disk, 0o755); err != nil {
		return err
	}
	if exec.CommandContext(ctx, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm,mode=755", mib), "tmpfs", disk).Run() != nil {
		return ctx.Err() // refused is no failure: no disk fills up then
	}
	s.disk = disk
	tables := filepath.Join(disk, "tables")
	info, err := os.Stat(filepath.Join(s.dir, "postgres", "data"))
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("the owner of %s is not known", info.Name())
	}
	return errors.Join(os.Mkdir(tables, 0o700), os.Chown(tables, int(owner.Uid), int(owner.Gid)))
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

func (s *server) start(ctx context.Context) error {
	_, err := s.run(ctx, "start", "postgres")
	return err
}

// remove stops the server and deletes its files.
func (s *server) remove(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	_, err := s.run(ctx, "stop", "postgres")
	if s.disk != "" && err == nil {
		err = exec.CommandContext(ctx, "umount", s.disk).Run()
	}
	if err != nil {
		return err
	}
	_, err = s.run(ctx, "clean")
	return err
}

// stopImmediately is pg_ctl stop -m immediate: no checkpoint, nothing is told to the clients, and the next start
// recovers from the log.
func (s *server) stopImmediately(ctx context.Context) error {
	file := filepath.Join(s.dir, "postgres", "data", "postmaster.pid")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
		return err
	}
	for range 6000 {
		if gone := errors.Is(syscall.Kill(pid, 0), syscall.ESRCH); gone {
			return nil
		}
		wait(ctx, 10*time.Millisecond)
	}
	return fmt.Errorf("the server, process %d, did not stop within a minute", pid)
}

// fill takes what is left of the disk, and returns what gives it back.
func (s *server) fill() (free func() error, err error) {
	name := filepath.Join(s.disk, "ballast")
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	free = func() error { return os.Remove(name) }
	for block := make([]byte, 64<<10); len(block) > 0; {
		_, err = f.Write(block)
		if err == nil {
			continue
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return nil, errors.Join(err, f.Close(), free())
		}
		block = block[:len(block)/2]
	}
	if err := f.Close(); err != nil {
		return nil, errors.Join(err, free())
	}
	return free, nil
}
