package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// action is one kind of trouble. It returns when the trouble has begun and, where it has an end, ended.
type action struct {
	name string
	do   func(ctx context.Context, s *system, rnd *rand.Rand) error
}

var actions = []action{
	{"kill a consumer", kill(consumer)},
	{"kill a relay", kill(relay)},
	{"kill a producer", kill(producer)},
	{"kill between effect and commit", dieAt(consumer, effect)},
	{"kill between commit and ack", dieAt(consumer, committed)},
	{"kill before the publish", dieAt(relay, publish)},
	{"kill between publish and delete", dieAt(relay, published)},
	{"kill between outbox.Add and commit", dieAt(producer, added)},
	{"kill after a producer's commit", dieAt(producer, produced)},
	{"freeze a consumer", freeze(consumer)},
	{"freeze a relay", freeze(relay)},
	{"freeze a producer", freeze(producer)},
	{"restart a consumer in order", restart(consumer)},
	{"restart a relay in order", restart(relay)},
	{"end connections", endConnections},
	{"stop the server immediately", stopServer},
	{"kill a backend", killBackend},
	{"exhaust max_connections", exhaust},
	{"fill the disk", fillDisk},
}

// plan is one round of all actions, in an order of its own.
func plan(rnd *rand.Rand, disk bool) []action {
	var round []action
	for _, a := range actions {
		if a.name == "fill the disk" && !disk {
			continue
		}
		round = append(round, a)
	}
	rnd.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
	return round
}

// between draws a duration.
func between(rnd *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rnd.Int64N(int64(most-least)))
}

func kill(r role) func(context.Context, *system, *rand.Rand) error {
	return func(_ context.Context, s *system, rnd *rand.Rand) error {
		s.one(r, rnd).signal(syscall.SIGKILL, true)
		return nil
	}
}

// dieAt makes a process die at a point, and waits until it has, if it comes there soon.
func dieAt(r role, at point) func(context.Context, *system, *rand.Rand) error {
	return func(ctx context.Context, s *system, rnd *rand.Rand) error {
		p := s.one(r, rnd)
		p.dieAt(at)
		for began := time.Now(); p.waits() && time.Since(began) < 3*s.Lease; {
			wait(ctx, 20*time.Millisecond)
			_, _ = s.look() // paces the producers; an outage is not ours to report
		}
		return ctx.Err()
	}
}

// freeze stops a process for less or longer than its leases last, and lets it go on.
func freeze(r role) func(context.Context, *system, *rand.Rand) error {
	return func(ctx context.Context, s *system, rnd *rand.Rand) error {
		p, d := s.one(r, rnd), between(rnd, s.Lease/4, 2*s.Lease)
		s.log("  %s, for %v", p.spec.Name, d.Round(time.Millisecond))
		p.signal(syscall.SIGSTOP, false)
		wait(ctx, d)
		p.signal(syscall.SIGCONT, false)
		return nil
	}
}

func restart(r role) func(context.Context, *system, *rand.Rand) error {
	return func(_ context.Context, s *system, rnd *rand.Rand) error {
		s.one(r, rnd).signal(syscall.SIGTERM, true)
		return nil
	}
}

func (s *system) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(s.server.url)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = "chaos"
	return pgx.ConnectConfig(ctx, config)
}

// endConnections ends about half of the system's connections.
func endConnections(ctx context.Context, s *system, rnd *rand.Rand) error {
	return s.terminate(ctx, 0.5)
}

func (s *system) terminate(ctx context.Context, share float64) (err error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	var n int64
	err = conn.QueryRow(ctx, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1 AND random() < $2", application, share).Scan(&n)
	s.log("  %d connections", n)
	return err
}

func stopServer(ctx context.Context, s *system, rnd *rand.Rand) error {
	if err := s.server.stopImmediately(ctx); err != nil {
		return err
	}
	wait(ctx, between(rnd, 0, s.Lease))
	return s.server.start(ctx)
}

// killBackend kills one of the server's processes by SIGKILL: the server ends all sessions and recovers by itself.
func killBackend(ctx context.Context, s *system, rnd *rand.Rand) (err error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	var pid int
	err = conn.QueryRow(ctx, "SELECT pid FROM pg_stat_activity WHERE application_name = $1 ORDER BY random() LIMIT 1", application).Scan(&pid)
	if errors.Is(err, pgx.ErrNoRows) { // all are being started
		return conn.Close(ctx)
	}
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = conn.Close(ctx) // the server may have ended it
	if err != nil {
		return err
	}
	wait(ctx, 100*time.Millisecond)
	return s.server.start(ctx) // waits until it answers
}

// exhaust takes every connection that the server has to give, those of the system among them, for a while.
func exhaust(ctx context.Context, s *system, rnd *rand.Rand) error {
	d := between(rnd, s.Lease/2, 3*s.Lease/2)
	// The chaos's own connection comes first, or it would get none.
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	hold, end := context.WithCancel(ctx)
	defer end()
	var mu sync.Mutex
	var foreign []*pgx.Conn
	var refused int
	var takers sync.WaitGroup
	for range 8 {
		takers.Go(func() {
			for hold.Err() == nil {
				c, err := s.connect(hold)
				mu.Lock()
				if err == nil {
					foreign = append(foreign, c)
				} else {
					refused++
				}
				mu.Unlock()
				if err != nil {
					wait(hold, 5*time.Millisecond)
				}
			}
		})
	}
	full := func() bool { mu.Lock(); defer mu.Unlock(); return refused > 0 }
	for i := 0; i < 3000 && !full(); i++ {
		wait(ctx, 10*time.Millisecond)
	}
	_, err = conn.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", application)
	wait(ctx, d)
	end()
	takers.Wait()
	s.log("  %d foreign connections for %v, %d refused", len(foreign), d.Round(time.Millisecond), refused)
	for _, c := range append(foreign, conn) {
		err = errors.Join(err, c.Close(ctx))
	}
	if refused == 0 {
		err = errors.Join(err, fmt.Errorf("%d foreign connections did not exhaust the server", len(foreign)))
	}
	return err
}

func fillDisk(ctx context.Context, s *system, rnd *rand.Rand) error {
	free, err := s.server.fill()
	if err != nil {
		return err
	}
	wait(ctx, between(rnd, s.Lease/2, 3*s.Lease/2))
	return free()
}
