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
	database    = "crash"
	space       = "crash" // the tablespace
)

// server is a Postgres of the run's own, by integration/servers.
type server struct {
	script string
	dir    string
	url    string // of the database
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
	admin, _, _ := strings.Cut(out, "'")
	s.url = strings.Replace(admin, "/postgres?", "/"+database+"?", 1)
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+database); err != nil {
		return nil, err
	}
	if diskMiB == 0 || !s.mount(ctx, diskMiB) {
		return s, nil
	}
	if _, err := conn.Exec(ctx, "CREATE TABLESPACE "+space+" LOCATION '"+filepath.Join(s.disk, "tables")+"'"); err != nil {
		return nil, err
	}
	_, err = conn.Exec(ctx, "ALTER DATABASE "+database+" SET default_tablespace = '"+space+"'")
	return s, err
}

// mount makes the small file system, and reports whether it may.
func (s *server) mount(ctx context.Context, mib int) bool {
	disk := filepath.Join(s.dir, "disk")
	if os.Getuid() != 0 || os.MkdirAll(disk, 0o755) != nil {
		return false
	}
	if exec.CommandContext(ctx, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm,mode=755", mib), "tmpfs", disk).Run() != nil {
		return false
	}
	s.disk = disk
	tables := filepath.Join(disk, "tables")
	info, err := os.Stat(filepath.Join(s.dir, "postgres", "data"))
	if err != nil || os.Mkdir(tables, 0o700) != nil {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && os.Chown(tables, int(owner.Uid), int(owner.Gid)) == nil
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
		if syscall.Kill(pid, 0) != nil {
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
	for block := make([]byte, 64<<10); err == nil; {
		if _, err = f.Write(block); err != nil && len(block) > 1 {
			block, err = block[:len(block)/2], onlyFull(err)
		}
	}
	if err = errors.Join(onlyFull(err), f.Close()); err != nil {
		err = errors.Join(err, free())
	}
	return free, err
}

func onlyFull(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return nil
	}
	return err
}
