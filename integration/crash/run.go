package crash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Config says how large a run is. All fields but DiskMiB are needed.
type Config struct {
	// Servers is the path of integration/servers; Dir an empty directory for the server, the logs and the
	// records, which the server's user must be able to see. The server's part is deleted at the end.
	Servers, Dir string
	// Seed draws the plan. Events is the least number of events, Keys of the keys that they are spread over.
	Seed   uint64
	Events int64
	Keys   int
	// Producers, Relays and Consumers are the numbers of processes.
	Producers, Relays, Consumers int
	// Rounds is the least number of times that each action comes, CalmMin and CalmMax what lies between two. There are more rounds until
	// processes have died at each point between two steps.
	Rounds           int
	CalmMin, CalmMax time.Duration
	// Lease is the time to live of the relays' and the broker's leases. Freezes last for up to twice that,
	// outages nearly as long.
	Lease time.Duration
	// Backlog is how many events may wait for their effect before producers pause.
	Backlog int64
	// DiskMiB is the size of a file system in memory for the tables, which fills up at times. It takes root;
	// without it, or where it is refused, no disk fills up, and the log says so. 0: none.
	DiskMiB int
	// Patience is how long nothing may move before the run is given up.
	Patience time.Duration
	// Log gets each action when it happens.
	Log io.Writer
}

// Report is what was survived, or was not.
type Report struct {
	Seed                                      uint64
	Took                                      time.Duration
	Events, Effects                           int64
	Attempts, FailedAttempts, Copies, Records int
	Processes                                 int
	// Actions counts what was done, by name.
	Actions map[string]int
	// Broken is what a run must not show. Empty: everything was survived.
	Broken []string
}

// String gives the report in lines.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d events, %d effects in %v; %d processes; %d records of %d attempts, %d failed, %d copies skipped\n",
		r.Seed, r.Events, r.Effects, r.Took.Round(time.Millisecond), r.Processes, r.Records, r.Attempts, r.FailedAttempts, r.Copies)
	names := make([]string, 0, len(r.Actions))
	for name := range r.Actions {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "%5d  %s\n", r.Actions[name], name)
	}
	if len(r.Broken) == 0 {
		b.WriteString("nothing lost, nothing doubled, every key in order\n")
	}
	for _, broken := range r.Broken {
		fmt.Fprintf(&b, "BROKEN: %s\n", broken)
	}
	return b.String()
}

// system is a run in progress.
type system struct {
	Config
	ctx    context.Context
	cancel context.CancelCauseFunc
	server *server
	dir    string // of logs and records
	pool   *pgxpool.Pool
	places map[role][]*process
	paused atomic.Bool
	began  time.Time

	mu     sync.Mutex
	counts map[string]int
}

func (s *system) log(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.Log, "%8.3f  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func (s *system) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

// diedAtAll tells whether processes have died at each of the points that matter.
func (s *system) diedAtAll() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range points {
		if s.counts[diedAt(at)] == 0 {
			return false
		}
	}
	return true
}

// diedAt is what a death at a point is counted as.
func diedAt(at point) string { return "  died there: " + string(at) }

// fail ends the run.
func (s *system) fail(err error) { s.cancel(err) }

// one draws a process.
func (s *system) one(r role, rnd *rand.Rand) *process {
	return s.places[r][rnd.IntN(len(s.places[r]))]
}

func (s *system) all() (all []*process) {
	for _, r := range []role{producer, relay, consumer} { // in the order in which they stop
		all = append(all, s.places[r]...)
	}
	return all
}

// Run makes a server and a system of processes, troubles it until everything has happened, lets it come to rest,
// and judges. Its error says that the run itself failed, or that the system did not come to rest; what the system did
// wrong is in the report.
func Run(ctx context.Context, config Config) (_ Report, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &system{
		Config: config, ctx: ctx, cancel: cancel, dir: filepath.Join(config.Dir, "run"),
		places: map[role][]*process{}, began: time.Now(), counts: map[string]int{},
	}
	s.log("seed %d", s.Seed)
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		return Report{}, err
	}
	if s.server, err = startServer(ctx, s.Servers, filepath.Join(s.Dir, "server"), s.DiskMiB); err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, s.server.remove(ctx)) }()
	if s.DiskMiB > 0 && s.server.disk == "" {
		s.log("no disk fills up: a file system in memory cannot be mounted here")
	}
	if s.pool, err = pgxpool.New(ctx, s.server.url); err != nil {
		return Report{}, err
	}
	defer s.pool.Close()
	if err := prepare(ctx, s.pool, s.Keys); err != nil {
		return Report{}, err
	}
	defer s.killAll()
	if err := s.startAll(); err != nil {
		return Report{}, err
	}
	if err := s.trouble(); err != nil {
		return Report{}, err
	}
	if err := s.rest(); err != nil {
		return Report{}, err
	}
	report := Report{Seed: s.Seed, Took: time.Since(s.began), Actions: s.counts}
	for _, p := range s.all() {
		report.Processes += p.runs
	}
	err = report.judge(ctx, s.pool, s.dir)
	return report, err
}

func (s *system) startAll() error {
	for r, n := range map[role]int{producer: s.Producers, relay: s.Relays, consumer: s.Consumers} {
		for i := range n {
			p := &process{s: s, ended: make(chan struct{}), spec: spec{
				Role: r, Name: fmt.Sprintf("%s-%d", r, i), URL: s.server.url, Keys: s.Keys, Seed: s.Seed + uint64(i)<<32, Handles: handlings[i%len(handlings)],
			}}
			if err := p.start(); err != nil {
				return err
			}
			s.places[r] = append(s.places[r], p)
			go p.keep()
		}
	}
	return nil
}

func (s *system) killAll() {
	for _, p := range s.all() {
		p.kill()
		<-p.ended
	}
}

// trouble does the plan's actions, with progress between them.
func (s *system) trouble() error {
	rnd := rand.New(rand.NewPCG(s.Seed, 1))
	var last progress
	for round := 1; ; round++ {
		for _, a := range plan(rnd, s.server.disk != "") {
			p, err := s.moves(between(rnd, s.CalmMin, s.CalmMax), last)
			if err != nil {
				return fmt.Errorf("before %q: %w", a.name, err)
			}
			last = p
			if round > s.Rounds && p.made >= s.Events && s.diedAtAll() {
				return nil
			}
			s.log("%s (%d made, %d effects)", a.name, p.made, p.effects)
			s.count(a.name)
			if err := a.do(s.ctx, s, rnd); err != nil {
				return fmt.Errorf("%s: %w", a.name, err)
			}
		}
	}
}

// moves waits for calm and then until there are more effects than at last. Meanwhile it paces the producers.
func (s *system) moves(calm time.Duration, last progress) (progress, error) {
	began := time.Now()
	for {
		p, err := s.look()
		since := time.Since(began)
		if err == nil && since >= calm && p.effects > last.effects {
			return p, nil
		}
		if since > s.Patience {
			return p, errors.Join(fmt.Errorf("no progress within %v: %+v", s.Patience, p), err)
		}
		wait(s.ctx, min(100*time.Millisecond, max(calm-since, 20*time.Millisecond)))
		if s.ctx.Err() != nil {
			return p, context.Cause(s.ctx)
		}
	}
}

// look reads the progress and paces the producers.
func (s *system) look() (progress, error) {
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	p, err := readProgress(ctx, s.pool)
	if err != nil {
		return p, err
	}
	pause := p.made-p.effects > s.Backlog
	if s.paused.Swap(pause) != pause {
		s.pace()
	}
	return p, nil
}

// pace tells the producers whether they pause.
func (s *system) pace() {
	command := "go"
	if s.paused.Load() {
		command = "pause"
	}
	for _, p := range s.places[producer] {
		p.tell(command)
	}
}

// rest stops the producers, waits until nothing is left to do and stops the others.
func (s *system) rest() error {
	s.log("the producers stop")
	for _, p := range s.places[producer] {
		p.stop()
		if err := s.end(p); err != nil {
			return err
		}
	}
	var last progress
	for moved := time.Now(); ; {
		p, err := readProgress(s.ctx, s.pool)
		if err == nil && p.effects >= p.made && p.waiting == 0 {
			break
		}
		if p != last && err == nil {
			last, moved = p, time.Now()
		}
		if time.Since(moved) > s.Patience {
			s.log("no rest: %+v, %v", p, err)
			break // the judgement tells what is missing
		}
		wait(s.ctx, 50*time.Millisecond)
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
	}
	s.log("the rest stops")
	for _, p := range append(s.places[relay], s.places[consumer]...) {
		p.stop()
	}
	for _, p := range append(s.places[relay], s.places[consumer]...) {
		if err := s.end(p); err != nil {
			return err
		}
	}
	return nil
}

// end waits for the end of a process that stops.
func (s *system) end(p *process) error {
	select {
	case <-p.ended:
	case <-time.After(s.Patience):
		return fmt.Errorf("%s does not stop", p.spec.Name)
	case <-s.ctx.Done():
	}
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	return nil
}
