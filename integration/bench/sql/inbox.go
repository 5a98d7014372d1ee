package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	goruntime "runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/stores/pgxstore"
)

// inboxResult is one line of the output.
type inboxResult struct {
	Bench     string  `json:"bench"`
	Subject   string  `json:"subject"`
	InFlight  int     `json:"in_flight"` // messages; by hand: transactions
	PerSecond float64 `json:"per_second"`
	// For a message: processor time of this process, that of the server, and what it writes ahead.
	CPUMicros    float64 `json:"cpu_us"`
	ServerMicros float64 `json:"server_cpu_us,omitempty"`
	WALBytes     float64 `json:"wal_bytes"`
	// Ratios within a round of the same in-flight number, the median over the rounds: to the loop by hand with
	// the same statements and round trips, and to HandleTx.
	TimesHand     float64 `json:"x_hand"`
	TimesHandleTx float64 `json:"x_handletx"`
}

func inboxMain() {
	limit := flag.Duration("limit", 2*time.Second, "the longest that one measurement takes, after its first tenth")
	n := flag.Int("n", 120_000, "messages of one measurement at most")
	rounds := flag.Int("rounds", 3, "rounds of each subject; the median counts")
	only := flag.String("only", "", "only subjects whose name has this in it, and the two that ratios are given to")
	levels := flag.String("in-flight", "1,8,32,64", "messages in flight; the groups at their own size come with 32")
	postmaster := flag.Int("postmaster", 0, "process id of the server, where it is on this machine: its processor time is told as well")
	profile := flag.String("cpuprofile", "", "write a CPU profile of all measurements to this file")
	format := formatFlag()
	flag.Parse()
	ctx := context.Background()
	b, err := newInboxBench(ctx, postgresURL(), *n, *limit)
	if err == nil && *profile != "" {
		b.profile, err = os.Create(*profile)
	}
	if err != nil {
		log.Fatal(err)
	}
	b.postmaster = *postmaster
	if b.profile != nil {
		if err := pprof.StartCPUProfile(b.profile); err != nil {
			log.Fatal(err)
		}
	}
	results, err := b.measure(ctx, *levels, *only, *rounds)
	if b.profile != nil {
		pprof.StopCPUProfile()
		err = cmp.Or(err, b.profile.Close())
	}
	if cerr := b.close(ctx); err == nil {
		err = cerr
	}
	if err == nil {
		err = emit(os.Stdout, *format, results, writeInbox)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// keys is how many accounts there are, and so lanes.
const keys = 10_000

// inboxBench is a schema with our tables and the accounts that the effects go to.
type inboxBench struct {
	url    string
	schema string
	admin  *pgxpool.Pool
	n      int
	limit  time.Duration

	postmaster int      // 0: unknown
	profile    *os.File // nil: none
}

func newInboxBench(ctx context.Context, url string, n int, limit time.Duration) (*inboxBench, error) {
	admin, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	b := &inboxBench{url: url, schema: fmt.Sprintf("bench_inbox_%d", os.Getpid()), admin: admin, n: n, limit: limit}
	store, err := pgxstore.New(admin, pgxstore.WithSchema(b.schema))
	if err == nil {
		err = store.Migrate(ctx)
	}
	if err == nil {
		_, err = admin.Exec(ctx, "CREATE TABLE "+b.schema+".accounts (id int PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50)")
	}
	if err == nil {
		_, err = admin.Exec(ctx, "INSERT INTO "+b.schema+".accounts SELECT i, 0 FROM generate_series(0, $1) AS i", keys-1)
	}
	return b, err
}

func (b *inboxBench) close(ctx context.Context) error {
	_, err := b.admin.Exec(ctx, "DROP SCHEMA "+b.schema+" CASCADE")
	b.admin.Close()
	return err
}

// pool has conns connections for transactions, and one for the rest.
func (b *inboxBench) pool(ctx context.Context, conns int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(b.url)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns = int32(conns+1), int32(conns+1)
	return pgxpool.NewWithConfig(ctx, config)
}

// inboxSubject is one way to handle messages once.
type inboxSubject struct {
	name string
	run  func(ctx context.Context, b *inboxBench, inFlight int) (speed, error)
	// full: messages in flight of a subject that is also run with as many as fill its groups; 0: it is not.
	full   int
	groups bool // full counts transactions, and it is run with these only
}

// handSubject is the one with the same statements and round trips as HandleTx.
const (
	handSubject     = "by hand, 3 round trips"
	handleTxSubject = "HandleTx"
)

var inboxSubjects = []inboxSubject{
	{name: "by hand, 4 round trips", run: byHand((*handLoop).fourTrips)},
	{name: handSubject, run: byHand((*handLoop).threeTrips)},
	{name: "by hand, all pipelined", run: byHand((*handLoop).oneTrip)},
	{name: "by hand, 50 in a transaction, 4 in parallel", run: byHandGroups(50, (*handLoop).oneByOne), groups: true, full: 4},
	{name: "by hand, 50 with one UPDATE, 4 in parallel", run: byHandGroups(50, (*handLoop).atOnce), groups: true, full: 4},
	{name: "by hand, 200 with one UPDATE, 4 in parallel", run: byHandGroups(200, (*handLoop).atOnce), groups: true, full: 4},
	{name: handleTxSubject, run: handleTx(0, 0, exec)},
	{name: "HandleTx, queued UPDATE", run: handleTx(0, 0, pgxstore.Queue)},
	{name: "Grouped 50", run: handleTx(50, 1, exec), full: 100},
	{name: "Grouped 50, 4 in parallel", run: handleTx(50, 4, exec), full: 250},
	{name: "Grouped 50, queued UPDATEs", run: handleTx(50, 1, pgxstore.Queue), full: 100},
	{name: "Grouped 50, 4 in parallel, queued UPDATEs", run: handleTx(50, 4, pgxstore.Queue), full: 250},
	{name: "HandleBatch 50", run: handleBatch(50, 1), full: 100},
	{name: "HandleBatch 200", run: handleBatch(200, 1), full: 400},
	{name: "HandleBatch 200, 4 in parallel", run: handleBatch(200, 4), full: 1000},
}

func (b *inboxBench) measure(ctx context.Context, levels, only string, rounds int) ([]inboxResult, error) {
	type place struct {
		subject  inboxSubject
		level    int // what it is compared at
		inFlight int
	}
	var places []place
	for _, text := range strings.Split(levels, ",") {
		level, err := strconv.Atoi(text)
		if err != nil || level < 1 {
			return nil, fmt.Errorf("-in-flight is %q: want numbers above zero", levels)
		}
		for _, s := range inboxSubjects {
			if !strings.Contains(s.name, only) && s.name != handSubject && s.name != handleTxSubject {
				continue
			}
			if !s.groups {
				places = append(places, place{s, level, level})
			}
			if level == 32 && s.full > 0 {
				places = append(places, place{s, level, s.full})
			}
		}
	}
	samples := make([][]inboxResult, len(places))
	for range rounds {
		hand, tx := map[int]float64{}, map[int]float64{}
		for i, p := range places {
			for _, statement := range []string{"TRUNCATE " + b.schema + ".headrace_inbox", "VACUUM ANALYZE " + b.schema + ".accounts"} {
				if _, err := b.admin.Exec(ctx, statement); err != nil {
					return nil, err
				}
			}
			rate, err := p.subject.run(ctx, b, p.inFlight)
			if err != nil {
				return nil, fmt.Errorf("%s, %d in flight: %w", p.subject.name, p.inFlight, err)
			}
			switch p.subject.name {
			case handSubject:
				hand[p.level] = rate.perSecond
			case handleTxSubject:
				tx[p.level] = rate.perSecond
			}
			samples[i] = append(samples[i], inboxResult{
				Bench: "inbox", Subject: p.subject.name, InFlight: p.inFlight, PerSecond: rate.perSecond,
				CPUMicros: micros(rate.each.client), ServerMicros: micros(rate.each.server), WALBytes: float64(rate.each.wal),
			})
		}
		for i, p := range places {
			last := &samples[i][len(samples[i])-1]
			last.TimesHand, last.TimesHandleTx = last.PerSecond/hand[p.level], last.PerSecond/tx[p.level]
		}
	}
	results := make([]inboxResult, len(places))
	for i, s := range samples {
		results[i] = middle(s)
	}
	return results, nil
}

// middle is the median over the rounds of a subject, of each number.
func middle(rounds []inboxResult) inboxResult {
	r := rounds[0]
	r.PerSecond = median(rounds, func(r inboxResult) float64 { return r.PerSecond })
	r.CPUMicros = median(rounds, func(r inboxResult) float64 { return r.CPUMicros })
	r.ServerMicros = median(rounds, func(r inboxResult) float64 { return r.ServerMicros })
	r.WALBytes = median(rounds, func(r inboxResult) float64 { return r.WALBytes })
	r.TimesHand = median(rounds, func(r inboxResult) float64 { return r.TimesHand })
	r.TimesHandleTx = median(rounds, func(r inboxResult) float64 { return r.TimesHandleTx })
	return r
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func median[T any](s []T, of func(T) float64) float64 {
	values := make([]float64, len(s))
	for i, v := range s {
		values[i] = of(v)
	}
	slices.SortFunc(values, cmp.Compare)
	return values[len(values)/2]
}

// speed is what a measurement gives.
type speed struct {
	perSecond float64
	each      cost // for a message
}

// rate tells how done grows.
func (b *inboxBench) rate(ctx context.Context, done func() int64) (speed, error) {
	return rate(b.n, b.limit, done, func() (cost, error) { return costNow(ctx, b.admin, b.postmaster) })
}

// rate tells how done grows and what that costs, for limit or until n, once the first hundredth is through.
func rate(n int, limit time.Duration, done func() int64, now func() (cost, error)) (speed, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	begin := time.Now()
	for done() < int64(n/100) && time.Since(begin) < limit {
		<-tick.C
	}
	before, err := now()
	if err != nil {
		return speed{}, err
	}
	start, first := time.Now(), done()
	for time.Since(start) < limit && done() < int64(n) {
		<-tick.C
	}
	took, messages := time.Since(start), done()-first
	after, err := now()
	return speed{float64(messages) / took.Seconds(), after.sub(before).of(messages)}, err
}

func writeInbox(w io.Writer, results []inboxResult) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "subject\tin flight\tmessages/s\tcpu us\tserver us\tWAL bytes\tx by hand\tx HandleTx\t")
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t%d\t%.0f\t%.1f\t%.1f\t%.0f\t%.2f\t%.2f\t\n", r.Subject, r.InFlight, r.PerSecond, r.CPUMicros, r.ServerMicros, r.WALBytes, r.TimesHand, r.TimesHandleTx)
	}
	return tw.Flush()
}

// The statements of a message, by hand and with Headrace.
func (b *inboxBench) claim() string {
	return "INSERT INTO " + b.schema + ".headrace_inbox (consumer, id) VALUES ($1, $2) ON CONFLICT DO NOTHING"
}

func (b *inboxBench) claims() string {
	return "INSERT INTO " + b.schema + ".headrace_inbox (consumer, id) SELECT * FROM unnest($1::text[], $2::text[]) ON CONFLICT DO NOTHING RETURNING consumer, id"
}

func (b *inboxBench) effect() string {
	return "UPDATE " + b.schema + ".accounts SET n = n + $1 WHERE id = $2"
}

func (b *inboxBench) effects() string {
	return "UPDATE " + b.schema + ".accounts a SET n = a.n + e.n FROM unnest($1::bigint[], $2::int[]) AS e (n, id) WHERE a.id = e.id"
}

// handLoop is a consumer written by hand.
type handLoop struct {
	claim, effect   string
	claims, effects string // of many
	pool            *pgxpool.Pool
}

// byHand runs one in inFlight goroutines.
func byHand(one func(*handLoop, context.Context, int) error) func(context.Context, *inboxBench, int) (speed, error) {
	return byHandGroups(1, func(h *handLoop, ctx context.Context, i, _ int) error { return one(h, ctx, i) })
}

// byHandGroups is byHand with size messages in a transaction.
func byHandGroups(size int, some func(h *handLoop, ctx context.Context, i, n int) error) func(context.Context, *inboxBench, int) (speed, error) {
	return func(ctx context.Context, b *inboxBench, inFlight int) (speed, error) {
		pool, err := b.pool(ctx, inFlight)
		if err != nil {
			return speed{}, err
		}
		defer pool.Close()
		h := &handLoop{b.claim(), b.effect(), b.claims(), b.effects(), pool}
		goruntime.GC()
		var c counter
		running, stop := context.WithCancel(ctx)
		// As everybody's, the statements' context can end; here it does when all is over.
		work, cancel := context.WithCancel(ctx)
		defer cancel()
		var workers sync.WaitGroup
		for range inFlight {
			workers.Go(func() {
				for running.Err() == nil {
					i := int(c.next.Add(int64(size))) - size
					if i+size > b.n {
						return
					}
					if err := some(h, work, i, size); err != nil {
						c.failed(err)
						return
					}
					c.done.Add(int64(size))
				}
			})
		}
		r, err := b.rate(ctx, c.done.Load)
		stop()
		workers.Wait()
		return r, cmp.Or(err, c.err())
	}
}

func (h *handLoop) fourTrips(ctx context.Context, i int) error {
	tx, err := h.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // committed by then
	tag, err := tx.Exec(ctx, h.claim, "bench.orders", messageID(i))
	if err != nil || tag.RowsAffected() != 1 {
		return cmp.Or(err, errDuplicate)
	}
	if _, err := tx.Exec(ctx, h.effect, 1, i%keys); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func (h *handLoop) threeTrips(ctx context.Context, i int) error {
	conn, err := h.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{})
	b.Queue(h.claim, "bench.orders", messageID(i))
	results := conn.SendBatch(ctx, &b)
	_, err = results.Exec()
	tag, claimErr := results.Exec()
	tx := results.Tx()
	if err := cmp.Or(err, claimErr, results.Close()); err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // committed by then
	if tag.RowsAffected() != 1 {
		return errDuplicate
	}
	if _, err := tx.Exec(ctx, h.effect, 1, i%keys); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// oneTrip is what no handler can do: the effect goes out before the claim is answered.
func (h *handLoop) oneTrip(ctx context.Context, i int) error {
	conn, err := h.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var b pgx.Batch
	b.Queue("begin")
	b.Queue(h.claim, "bench.orders", messageID(i))
	b.Queue(h.effect, 1, i%keys)
	b.Queue("commit")
	return conn.SendBatch(ctx, &b).Close()
}

// group claims n messages from the i-th on in one transaction, as Headrace does, and runs effects in it.
func (h *handLoop) group(ctx context.Context, i, n int, effects func(pgx.Tx) error) error {
	conn, err := h.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	consumers, ids := make([]string, n), make([]string, n)
	for j := range n {
		consumers[j], ids[j] = "bench.orders", messageID(i+j)
	}
	var b pgx.Batch
	b.BeginTx(pgx.TxOptions{})
	b.Queue(h.claims, consumers, ids)
	results := conn.SendBatch(ctx, &b)
	_, err = results.Exec()
	tag, claimErr := results.Exec()
	tx := results.Tx()
	if err := cmp.Or(err, claimErr, results.Close()); err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // committed by then
	if tag.RowsAffected() != int64(n) {
		return errDuplicate
	}
	if err := effects(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// oneByOne is a group with an UPDATE for each message.
func (h *handLoop) oneByOne(ctx context.Context, i, n int) error {
	return h.group(ctx, i, n, func(tx pgx.Tx) error {
		for j := range n {
			if _, err := tx.Exec(ctx, h.effect, 1, (i+j)%keys); err != nil {
				return err
			}
		}
		return nil
	})
}

// atOnce is a group with one UPDATE for all.
func (h *handLoop) atOnce(ctx context.Context, i, n int) error {
	amounts, accounts := make([]int64, n), make([]int32, n)
	for j := range n {
		amounts[j], accounts[j] = 1, int32((i+j)%keys)
	}
	return h.group(ctx, i, n, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, h.effects, amounts, accounts)
		return err
	})
}
