package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlite"
	"github.com/headrace-go/headrace/stores/sqlstore"
	"github.com/headrace-go/headrace/telemetry"
)

// job is one run: the broker, the databases, and what works on them.
type job struct {
	options options
	input   []webhook
	logger  *slog.Logger
	tracing *tracing

	broker                       *embedded.Broker
	producerDB, tracked, noticed *sqlstore.Store
	opened                       []io.Closer

	producer *producer
	tracker  *runtime.Runtime
	webhooks *runtime.Consumer
	notifier *runtime.Runtime
	changes  *runtime.Consumer

	waitingFor string // what the run was last seen to wait for
}

// runJob does the whole work in this process. The report is nil if there is nothing to report yet.
func runJob(ctx context.Context, o options, stdout, stderr io.Writer) (r *report, err error) {
	start := time.Now()
	j := &job{options: o, logger: newLogger(o, stderr), waitingFor: "the services to start"}
	if j.tracing, err = newTracing(ctx, o.trace); err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, j.close())
		if e := j.tracing.close(); e != nil {
			fmt.Fprintln(stderr, "quickstart: traces were not exported:", e) // no reason to fail
		}
	}()
	if err := j.open(ctx); err != nil {
		return nil, err
	}
	before, err := readLedger(ctx, j.producerDB.DB(), j.tracked.DB())
	if err != nil {
		return nil, err
	}
	if o.killAt > 0 {
		stop := j.killAt(o.killAt-int(before.Effects), stdout)
		defer stop()
	}
	ran := j.run(ctx, newProgress(stderr))
	interrupted := ctx.Err() != nil

	// The books are read also when something went wrong: they tell what it has done.
	ctx = context.WithoutCancel(ctx)
	after, err := readLedger(ctx, j.producerDB.DB(), j.tracked.DB())
	if err != nil {
		return nil, errors.Join(ran, err)
	}
	b := &books{producer: j.producerDB.DB(), tracker: j.tracked.DB(), notifier: j.noticed.DB()}
	if err := b.check(ctx, j.input); err != nil {
		return nil, errors.Join(ran, err)
	}
	if ran == nil && len(b.problems) == 0 {
		ran = j.producer.finish(ctx)
	}
	if len(b.problems) > 0 && !interrupted {
		ran = errors.Join(ran, errors.New("the books do not balance:\n  "+strings.Join(b.problems, "\n  ")))
	}
	r = after.since(before)
	r.add(j.webhooks.Stats())
	r.OrderViolations, r.Lost = b.violations, b.lost
	r.ElapsedMS = time.Since(start).Milliseconds()
	if o.trace {
		j.printTraces(stdout, stderr)
	}
	return r, ran
}

func newLogger(o options, stderr io.Writer) *slog.Logger {
	level := slog.LevelError
	if o.verbose {
		level = slog.LevelDebug
	}
	return slog.New(telemetry.LogHandler(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})))
}

// open opens everything and wires the services. Nothing runs yet but the broker.
func (j *job) open(ctx context.Context) (err error) {
	if j.input, err = buildInput(); err != nil {
		return err
	}
	if j.options.first > 0 {
		j.input = j.input[:j.options.first]
	}
	if err := os.MkdirAll(j.options.data, 0o700); err != nil {
		return err
	}
	j.broker, err = embedded.New(
		embedded.Config{Dir: filepath.Join(j.options.data, "jetstream"), Logger: j.logger},
		jetstream.Config{Logger: j.logger})
	if err != nil {
		return err
	}
	j.opened = append(j.opened, j.broker)
	if err := j.openStores(ctx); err != nil {
		return err
	}
	return j.wire(ctx)
}

// openStores opens the database of each service.
func (j *job) openStores(ctx context.Context) (err error) {
	for _, db := range []struct {
		store  **sqlstore.Store
		name   string
		schema string
	}{
		{&j.producerDB, "producer.db", producerSchema},
		{&j.tracked, "tracker.db", trackerSchema + deadLettersSchema},
		{&j.noticed, "notifier.db", notifierSchema},
	} {
		if *db.store, err = openStore(ctx, filepath.Join(j.options.data, db.name), db.schema); err != nil {
			return err
		}
		j.opened = append(j.opened, *db.store)
	}
	return nil
}

// openStore opens a SQLite file with Headrace's tables and the service's own.
func openStore(ctx context.Context, path, schema string) (*sqlstore.Store, error) {
	store, err := sqlite.Open(path)
	if err != nil {
		return nil, err
	}
	if err = store.Migrate(ctx); err == nil {
		_, err = store.DB().ExecContext(ctx, schema)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the tables in %s: %w", path, err), store.Close())
	}
	return store, nil
}

// wire makes the services. Each has a runtime of its own, as if it were a program of its own.
func (j *job) wire(ctx context.Context) (err error) {
	if j.tracker, err = j.newRuntime("tracker"); err != nil {
		return err
	}
	t := &tracker{store: j.tracked, directory: &directory{calls: map[string]int{}}}
	j.webhooks = t.register(j.tracker)

	if j.notifier, err = j.newRuntime("notifier"); err != nil {
		return err
	}
	n := &notifier{store: j.noticed}
	j.changes = n.register(j.notifier)

	return j.newProducer(ctx)
}

func (j *job) newRuntime(service string) (*runtime.Runtime, error) {
	return runtime.New(runtime.Config{
		Service:        service,
		Broker:         j.broker,
		Logger:         j.logger.With("service", service),
		TracerProvider: j.tracing.provider(service),
	})
}

func (j *job) newProducer(ctx context.Context) error {
	provider := j.tracing.provider("github")
	traced, err := telemetry.New(telemetry.Config{TracerProvider: provider, System: j.broker.Capabilities().System})
	if err != nil {
		return err
	}
	pub, err := j.broker.Publisher()
	if err != nil {
		return err
	}
	j.opened = append(j.opened, pub)
	j.producer = &producer{
		db:       j.producerDB.DB(),
		pub:      traced.Publisher(pub),
		tracer:   provider.Tracer("quickstart"),
		input:    j.input,
		withhold: j.options.withhold,
	}
	return j.producer.begin(ctx)
}

// run starts the services and the producer, waits until everything was handled, and stops them.
func (j *job) run(ctx context.Context, p *progress) error {
	ctx, cancel := context.WithTimeoutCause(ctx, j.options.timeout, fmt.Errorf("not finished within -timeout %v", j.options.timeout))
	defer cancel()
	working, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)

	var services sync.WaitGroup
	var failed [3]error
	for i, service := range []func(context.Context) error{j.tracker.Run, j.notifier.Run, j.producer.run} {
		services.Go(func() {
			if failed[i] = service(working); failed[i] != nil {
				stop(failed[i])
			}
		})
	}
	waited := j.wait(ctx, working, p)
	stop(nil)
	services.Wait()
	p.end()
	return errors.Join(append(failed[:], waited)...)
}

func (j *job) printTraces(stdout, stderr io.Writer) {
	if j.options.json {
		stdout = stderr
	}
	j.tracing.spans.print(stdout)
}

// close closes in the opposite order of opening.
func (j *job) close() error {
	var errs []error
	for i := len(j.opened) - 1; i >= 0; i-- {
		errs = append(errs, j.opened[i].Close())
	}
	return errors.Join(errs...)
}

// ledger is what the databases hold, counted.
type ledger struct{ Published, Effects, Stale, DeadLettered int64 }

func readLedger(ctx context.Context, producer, tracker *sql.DB) (ledger, error) {
	var l ledger
	var claims int64
	for _, q := range []struct {
		db    *sql.DB
		query string
		into  *int64
	}{
		{producer, `SELECT confirmed FROM position`, &l.Published},
		{tracker, `SELECT COUNT(*) FROM effects`, &l.Effects},
		{tracker, `SELECT COUNT(*) FROM headrace_inbox WHERE consumer = '` + trackerConsumer + `'`, &claims},
		{tracker, `SELECT COUNT(DISTINCT uuid) FROM dead_letters`, &l.DeadLettered},
	} {
		if err := q.db.QueryRowContext(ctx, q.query).Scan(q.into); err != nil {
			return l, fmt.Errorf("read the books: %w", err)
		}
	}
	l.Stale = claims - l.Effects // a claim without an effect
	return l, nil
}

// since is the report of what happened after before.
func (l ledger) since(before ledger) *report {
	return &report{
		Published:    l.Published - before.Published,
		Effects:      l.Effects - before.Effects,
		Stale:        l.Stale - before.Stale,
		DeadLettered: l.DeadLettered - before.DeadLettered,
	}
}

// add counts what the databases do not hold.
func (r *report) add(s runtime.Stats) {
	r.Deliveries += s.Deliveries
	r.Duplicates += s.Duplicates
	r.Retries += s.Retries
}
