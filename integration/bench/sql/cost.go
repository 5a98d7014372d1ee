package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// cost is what work has taken so far, here and in the server. A noisy machine disturbs it less than the clock.
type cost struct {
	client, server time.Duration // of the processors
	wal            int64         // bytes
}

func (c cost) sub(o cost) cost { return cost{c.client - o.client, c.server - o.server, c.wal - o.wal} }

// of is c for each of n.
func (c cost) of(n int64) cost {
	n = max(1, n)
	return cost{c.client / time.Duration(n), c.server / time.Duration(n), c.wal / n}
}

// costNow reads the cost. That of the server's processes is 0 unless its postmaster is a process that /proc shows.
func costNow(ctx context.Context, admin *pgxpool.Pool, postmaster int) (c cost, err error) {
	c.client = cpuTime()
	if err = admin.QueryRow(ctx, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&c.wal); err != nil {
		return c, err
	}
	if postmaster > 0 {
		c.server, err = serverTime(postmaster)
	}
	return c, err
}

// cpuTime is what this process has used of the processors.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// serverTime is what a postmaster's children have used, those included that have ended.
func serverTime(postmaster int) (time.Duration, error) {
	parent, err := readStat(strconv.Itoa(postmaster))
	if err != nil {
		return 0, fmt.Errorf("-postmaster: %w", err)
	}
	ticks := parent.ended
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		if p, err := readStat(filepath.Base(dir)); err == nil && p.parent == postmaster { // else it has ended
			ticks += p.own
		}
	}
	return time.Duration(ticks) * (time.Second / 100), nil // a tick is USER_HZ, 100 on Linux
}

type procStat struct {
	parent     int
	own, ended int64 // ticks: its own, and those of its children that have ended
}

// readStat reads /proc/PID/stat; see proc(5).
func readStat(pid string) (s procStat, err error) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return s, err
	}
	// The name, in parentheses, may have spaces. After it: state, ppid, ... utime is the 14th field of all.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 15 {
		return s, fmt.Errorf("/proc/%s/stat has %d fields after the name: want at least 15", pid, len(fields))
	}
	var n [4]int64
	for i := range n {
		if n[i], err = strconv.ParseInt(fields[11+i], 10, 64); err != nil {
			return s, err
		}
	}
	s.parent, err = strconv.Atoi(fields[1])
	s.own, s.ended = n[0]+n[1], n[2]+n[3]
	return s, err
}
