package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/integration/chaos/proxy"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// config says what a run is. All fields but Wanted are needed.
type config struct {
	// Servers is the path of integration/servers. Dir is an empty directory for logs, records and, meanwhile, the servers, whose
	// users must be able to see it.
	Servers, Dir string
	Seed         uint64
	Duration     time.Duration
	// Pipelines are the brokers, by the pipelines' names. Sabotaged says which consumers are broken on purpose.
	Pipelines map[string]string
	Sabotaged map[string]sabotage
	// Wanted says which kinds of trouble there are. nil: all.
	Wanted func(kind) bool
	// Rate is how many events each pipeline gets in a second, Backlog how many may wait before its producer does.
	Rate    int
	Backlog int64
	// Relays and Consumers are the numbers of processes of each pipeline.
	Relays, Consumers int
	// Patience is how long nothing may move in the end.
	Patience time.Duration
	// Keep leaves the servers' files.
	Keep bool
	Log  io.Writer
}

// run is a run in progress.
type run struct {
	config
	ctx       context.Context
	cancel    context.CancelCauseFunc
	dir       string // of logs and records
	servers   servers
	pool      *pgxpool.Pool // around the proxies
	pipelines []*pipeline   // in the order of their names
	began     time.Time

	mu     sync.Mutex
	done   map[string]map[kind]int // by lane
	missed int                     // actions for which no time was left
}

// pipeline is one broker's.
type pipeline struct {
	r                *run
	spec             spec
	store            *pgxstore.Store
	servers          []*server               // of its broker
	broker           map[string]*proxy.Proxy // by the server's name
	database         *proxy.Proxy
	producer         *place
	relays, consumer []*place

	mu         sync.Mutex
	counted    counts
	violations []string
	storms     int
}

// counts of a pipeline's processes.
type counts struct {
	processes, notBegun, stops int
	slowest                    time.Duration // of those that were stopped in order
}

func (p *pipeline) count(c counts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counted.processes += c.processes
	p.counted.notBegun += c.notBegun
}

func (p *pipeline) drained(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counted.stops++
	p.counted.slowest = max(p.counted.slowest, took)
}

// broken notes a promise that was broken.
func (p *pipeline) broken(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	p.r.log("%-9s BROKEN: %s", p.spec.Pipeline, text)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.violations = append(p.violations, text)
}

func (r *run) log(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.Log, "%8.3f  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// fail ends the run: it is the run that failed, not what it judges.
func (r *run) fail(err error) { r.cancel(err) }

// chaos makes servers and pipelines, troubles them by the plan, lets them come to rest, and judges. Its error says that the run
// itself failed; what the pipelines did wrong is in the report.
func chaos(ctx context.Context, c config) (_ report, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &run{config: c, ctx: ctx, cancel: cancel, dir: filepath.Join(c.Dir, "run"), began: time.Now(), done: map[string]map[kind]int{}}
	if r.Wanted == nil {
		r.Wanted = func(kind) bool { return true }
	}
	r.log("seed %d, for %v: %v", r.Seed, r.Duration, r.Pipelines)
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		return report{}, err
	}
	r.servers, err = startServers(ctx, r.config.Servers, filepath.Join(c.Dir, "servers"), r.serverNames())
	defer func() { err = errors.Join(err, r.servers.close(ctx, r.Keep)) }()
	if err != nil {
		return report{}, err
	}
	if err := prepareDatabase(ctx, r.servers["postgres"]); err != nil {
		return report{}, err
	}
	if r.pool, err = pgxpool.New(ctx, r.servers["postgres"].url); err != nil {
		return report{}, err
	}
	defer r.pool.Close()
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(); err != nil {
		return report{}, err
	}
	r.log("%d servers and %d pipelines run", len(r.servers), len(r.pipelines))
	r.began = time.Now()
	if err := r.trouble(); err != nil {
		return report{}, err
	}
	if err := r.rest(); err != nil {
		return report{}, err
	}
	rep := report{Seed: r.Seed, Done: r.done, Missed: r.missed}
	for _, p := range r.pipelines {
		v, err := p.verdict(ctx)
		if err != nil {
			return rep, fmt.Errorf("judge %s: %w", p.spec.Pipeline, err)
		}
		rep.Verdicts = append(rep.Verdicts, v)
	}
	rep.Took = time.Since(r.began)
	return rep, nil
}

func (r *run) serverNames() []string {
	names := map[string]bool{"postgres": true}
	for _, broker := range r.Pipelines {
		if broker == kafkaCluster {
			for _, node := range nodes {
				names[node] = true
			}
		} else if name := serverOf(broker); name != "" {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// open makes the pipelines and starts their processes.
func (r *run) open() error {
	for _, name := range slices.Sorted(maps.Keys(r.Pipelines)) {
		p := &pipeline{r: r, broker: map[string]*proxy.Proxy{}}
		r.pipelines = append(r.pipelines, p)
		if err := p.make(name, r.Pipelines[name]); err != nil {
			return fmt.Errorf("pipeline %s: %w", name, err)
		}
	}
	for _, p := range r.pipelines {
		if err := p.start(); err != nil {
			return err
		}
	}
	return nil
}

// make prepares the database and the broker, and puts proxies before them.
func (p *pipeline) make(name, broker string) (err error) {
	r := p.r
	p.spec = spec{
		Pipeline: name, Broker: broker, Outage: filepath.Join(r.dir, name+".outage"), Sabotage: r.Sabotaged[name],
		Rate: r.Rate, Backlog: r.Backlog, Seed: r.Seed, Postgres: r.servers["postgres"].url, Dial: map[string]string{},
	}
	switch {
	case broker == kafkaCluster:
		for _, node := range nodes {
			p.servers = append(p.servers, r.servers[node])
		}
	case serverOf(broker) != "":
		p.servers = []*server{r.servers[serverOf(broker)]}
	}
	for i, s := range p.servers {
		if i > 0 {
			p.spec.URL += ","
		}
		p.spec.URL += s.url
	}
	if p.store, err = pgxstore.New(r.pool, pgxstore.WithSchema(p.spec.schema())); err != nil {
		return err
	}
	if err := p.spec.prepare(r.ctx, r.pool); err != nil {
		return err
	}
	for _, s := range p.servers {
		host, err := hostPort(s.url)
		if err != nil {
			return err
		}
		if p.broker[s.name], err = proxy.New(host); err != nil {
			return err
		}
		p.spec.Dial[host] = p.broker[s.name].Addr()
	}
	host, err := hostPort(p.spec.Postgres)
	if err != nil {
		return err
	}
	if p.database, err = proxy.New(host); err != nil {
		return err
	}
	p.spec.Postgres, err = via(p.spec.Postgres, p.database.Addr())
	return err
}

func (p *pipeline) start() (err error) {
	if p.producer, err = p.open(producer, 0); err != nil {
		return err
	}
	for i := range p.r.Relays {
		l, err := p.open(relay, i)
		if err != nil {
			return err
		}
		p.relays = append(p.relays, l)
	}
	consumers := p.r.Consumers
	if one(p.spec.Broker) {
		consumers = 1
	}
	for i := range consumers {
		l, err := p.open(consumer, i)
		if err != nil {
			return err
		}
		p.consumer = append(p.consumer, l)
	}
	return nil
}

func (p *pipeline) places() []*place {
	all := slices.Concat(p.relays, p.consumer)
	if p.producer != nil {
		all = append(all, p.producer)
	}
	return all
}

// close ends what is left, in whatever state it is.
func (r *run) close() error {
	var errs []error
	for _, p := range r.pipelines {
		for _, l := range p.places() {
			l.kill()
		}
		for _, x := range p.broker {
			errs = append(errs, x.Close())
		}
		if p.database != nil {
			errs = append(errs, p.database.Close())
		}
	}
	return errors.Join(errs...)
}

// trouble does the plan, each lane by itself.
func (r *run) trouble() error {
	lanes := map[string][]action{}
	for _, a := range plan(r.Seed, r.Duration, r.Pipelines, r.Wanted) {
		lanes[a.Pipeline] = append(lanes[a.Pipeline], a)
	}
	var all sync.WaitGroup
	for _, lane := range lanes {
		all.Go(func() {
			if err := r.lane(lane); err != nil {
				r.fail(err)
			}
		})
	}
	pause(r.ctx, r.Duration)
	all.Wait()
	return context.Cause(r.ctx)
}

// lane does one lane's actions. One that took longer than planned moves those that follow; what would end too late is left out.
func (r *run) lane(actions []action) error {
	for i := 0; i < len(actions) && r.ctx.Err() == nil; i++ {
		a := actions[i]
		pause(r.ctx, a.At-time.Since(r.began))
		if time.Since(r.began)+a.For > r.Duration+leastOf {
			r.mu.Lock()
			r.missed += len(actions) - i
			r.mu.Unlock()
			return nil
		}
		r.log("%v", a)
		began := time.Now()
		if err := r.do(a); err != nil {
			return fmt.Errorf("%v: %w", a, err)
		}
		took := time.Since(began)
		if took > 100*time.Millisecond {
			r.log("%-9s %s has ended, after %v", a.Pipeline, a.Kind, took.Round(time.Millisecond))
		}
		r.mu.Lock()
		if r.done[a.Pipeline] == nil {
			r.done[a.Pipeline] = map[kind]int{}
		}
		r.done[a.Pipeline][a.Kind]++
		r.mu.Unlock()
		pause(r.ctx, leastOf)
	}
	return nil
}

// rest stops the producers, waits until every event has its outcome, and stops the others.
func (r *run) rest() error {
	r.log("the trouble is over; the producers stop")
	var all sync.WaitGroup
	for _, p := range r.pipelines {
		all.Go(func() {
			if err := p.rest(); err != nil {
				r.fail(fmt.Errorf("%s: %w", p.spec.Pipeline, err))
			}
		})
	}
	all.Wait()
	return context.Cause(r.ctx)
}

func (p *pipeline) rest() error {
	p.producer.leave()
	if err := p.producer.await(p.producer.ended); err != nil {
		return err
	}
	began := time.Now()
	var last progress
	for moved := began; ; {
		now, err := look(p.r.ctx, p.r.pool, p.spec.schema(), true)
		if err != nil {
			return err
		}
		if now.Missing == 0 && now.Outbox == 0 {
			break
		}
		if now != last {
			last, moved = now, time.Now()
		}
		if time.Since(moved) > p.r.Patience {
			p.broken("it stands still for %v: %d of %d events have no outcome, %d rows are in the outbox; see %s/%s-*.log",
				p.r.Patience, now.Missing, now.Made, now.Outbox, p.r.dir, p.spec.Pipeline)
			break
		}
		pause(p.r.ctx, 100*time.Millisecond)
		if p.r.ctx.Err() != nil {
			return context.Cause(p.r.ctx)
		}
	}
	p.r.log("%-9s is at rest, after %v", p.spec.Pipeline, time.Since(began).Round(time.Millisecond))
	pause(p.r.ctx, time.Second) // for what comes twice
	for _, l := range slices.Concat(p.relays, p.consumer) {
		l.leave()
	}
	for _, l := range slices.Concat(p.relays, p.consumer) {
		if err := l.await(l.ended); err != nil {
			return err
		}
	}
	return nil
}
