package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// growthResult is one line of the output.
type growthResult struct {
	Bench     string  `json:"bench"`
	Claims    int     `json:"claims"` // that are there before
	IDs       string  `json:"ids"`
	Subject   string  `json:"subject"`
	PerSecond float64 `json:"per_second"`
	// TimesSmall is the ratio to the same with the fewest claims, within a round; the median over the rounds.
	TimesSmall float64 `json:"x_small"`
}

func growthMain() {
	sizes := flag.String("claims", "1000000,20000000", "claims that are there before, ascending")
	ids := flag.String("ids", "time", "time: UUIDv7, as event.New makes; random: UUIDv4")
	limit := flag.Duration("limit", 3*time.Second, "how long one measurement takes")
	rounds := flag.Int("rounds", 5, "rounds of each subject; the median counts")
	format := formatFlag()
	flag.Parse()
	results, err := benchGrowth(context.Background(), postgresURL(), *sizes, *ids, *limit, *rounds)
	if err == nil {
		err = emit(os.Stdout, *format, results, writeGrowth)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// grown is an inbox with old claims in a schema of its own.
type grown struct {
	claims int
	random bool // the ids
	schema string
	store  *pgxstore.Store
}

const (
	growthWorkers = 32
	growthGroup   = 50
	oldest        = 30 * 24 * time.Hour
)

func benchGrowth(ctx context.Context, url, sizes, ids string, limit time.Duration, rounds int) (results []growthResult, err error) {
	if ids != "time" && ids != "random" {
		return nil, fmt.Errorf("-ids is %q: want time or random", ids)
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = growthWorkers + 2
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	var inboxes []*grown
	defer func() {
		for _, g := range inboxes {
			_, derr := pool.Exec(ctx, "DROP SCHEMA "+g.schema+" CASCADE")
			err = errors.Join(err, derr)
		}
	}()
	for text := range strings.SplitSeq(sizes, ",") {
		var n int
		if _, err := fmt.Sscan(text, &n); err != nil || n < 1 {
			return nil, fmt.Errorf("-claims is %q: want numbers above zero", sizes)
		}
		g := &grown{claims: n, random: ids == "random", schema: fmt.Sprintf("bench_growth_%d_%d", os.Getpid(), n)}
		inboxes = append(inboxes, g)
		if err := g.fill(ctx, pool); err != nil {
			return nil, fmt.Errorf("fill %d claims: %w", n, err)
		}
	}
	subjects := []struct {
		name string
		run  func(*grown, context.Context, time.Duration) (float64, error)
	}{
		{"claim", (*grown).claimOne},
		{"claim of 50", (*grown).claimMany},
		{"claim while pruning", pruning((*grown).claimOne)},
		{"claim of 50 while pruning", pruning((*grown).claimMany)},
	}
	samples := make([][]growthResult, len(subjects)*len(inboxes))
	for range rounds {
		for s, subject := range subjects {
			small := 0.0
			for i, g := range inboxes {
				r, err := subject.run(g, ctx, limit)
				if err != nil {
					return nil, fmt.Errorf("%s beside %d claims: %w", subject.name, g.claims, err)
				}
				if i == 0 {
					small = r
				}
				at := s*len(inboxes) + i
				samples[at] = append(samples[at], growthResult{"growth", g.claims, ids, subject.name, r, r / small})
			}
		}
	}
	for _, s := range samples {
		r := s[0]
		r.PerSecond = median(s, func(r growthResult) float64 { return r.PerSecond })
		r.TimesSmall = median(s, func(r growthResult) float64 { return r.TimesSmall })
		results = append(results, r)
	}
	return results, nil
}

// fill makes claims that were evenly made over the last 30 days. The indexes are made afterwards: that is
// faster.
func (g *grown) fill(ctx context.Context, pool *pgxpool.Pool) error {
	var err error
	if g.store, err = pgxstore.New(pool, pgxstore.WithSchema(g.schema), pgxstore.WithMaxConcurrency(growthWorkers)); err != nil {
		return err
	}
	if err := g.store.Migrate(ctx); err != nil {
		return err
	}
	table := g.schema + ".headrace_inbox"
	id := "gen_random_uuid()"
	if !g.random { // 48 bits of milliseconds, then anything
		id = fmt.Sprintf("(lpad(to_hex((extract(epoch FROM now() - interval '30 days' * (1 - i / %d.0)) * 1000)::bigint), 12, '0') || substr(gen_random_uuid()::text, 14))", g.claims)
	}
	for _, statement := range []string{
		"ALTER TABLE " + table + " DROP CONSTRAINT headrace_inbox_pkey",
		"DROP INDEX " + g.schema + ".headrace_inbox_claimed_at",
		fmt.Sprintf("INSERT INTO %s SELECT 'bench.orders', 'ce:/bench/shop ' || %s, now() - interval '30 days' * (1 - i / %d.0) FROM generate_series(1, %d) AS i",
			table, id, g.claims, g.claims),
		"ALTER TABLE " + table + " ADD PRIMARY KEY (consumer, id)",
		"CREATE INDEX headrace_inbox_claimed_at ON " + table + " (claimed_at)",
		"VACUUM ANALYZE " + table,
		"CHECKPOINT",
	} {
		if _, err := pool.Exec(ctx, statement, pgx.QueryExecModeExec); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// id is a new one of the kind that is there.
func (g *grown) id() string {
	if g.random {
		return fmt.Sprintf("ce:/bench/shop %08x-0000-4000-8000-%012x", rand.Uint32(), rand.Uint64N(1<<48))
	}
	return fmt.Sprintf("ce:/bench/shop %012x-7000-8000-%012x", time.Now().UnixMilli(), rand.Uint64N(1<<48))
}

// work runs one in all workers for limit, and returns how many claims they made per second.
func (g *grown) work(ctx context.Context, limit time.Duration, workers int, one func(context.Context) (int, error)) (float64, error) {
	var c counter
	running, stop := context.WithTimeout(ctx, limit)
	defer stop()
	start := time.Now()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for running.Err() == nil {
				n, err := one(ctx)
				if err != nil {
					c.failed(err)
					return
				}
				c.done.Add(int64(n))
			}
		})
	}
	wg.Wait()
	return float64(c.done.Load()) / time.Since(start).Seconds(), c.err()
}

func (g *grown) claimOne(ctx context.Context, limit time.Duration) (float64, error) {
	return g.work(ctx, limit, growthWorkers, func(ctx context.Context) (int, error) {
		done, err := g.store.Once(ctx, inbox.Claim{Consumer: "bench.orders", ID: g.id()}, func(context.Context, pgx.Tx) error { return nil })
		if err == nil && !done {
			err = errDuplicate
		}
		return 1, err
	})
}

func (g *grown) claimMany(ctx context.Context, limit time.Duration) (float64, error) {
	return g.work(ctx, limit, 4, func(ctx context.Context) (int, error) {
		claims := make([]inbox.Claim, growthGroup)
		for i := range claims {
			claims[i] = inbox.Claim{Consumer: "bench.orders", ID: g.id()}
		}
		slices.SortFunc(claims, func(a, b inbox.Claim) int { return strings.Compare(a.ID, b.ID) })
		return len(claims), g.store.OnceGroup(ctx, claims, func(context.Context, pgx.Tx, []bool) error { return nil })
	})
}

// pruning runs a pruner beside it that has a hundredth of the claims to delete in each round.
func pruning(run func(*grown, context.Context, time.Duration) (float64, error)) func(*grown, context.Context, time.Duration) (float64, error) {
	return func(g *grown, ctx context.Context, limit time.Duration) (float64, error) {
		stats, err := g.store.Stats(ctx)
		if err != nil {
			return 0, err
		}
		pruner, err := inbox.NewPruner(g.store, inbox.PrunerConfig{Retention: stats.Oldest - oldest/100})
		if err != nil {
			return 0, err
		}
		pruneCtx, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			_, err := pruner.Prune(pruneCtx)
			ended <- err
		}()
		r, err := run(g, ctx, limit)
		stop()
		if perr := <-ended; perr != nil && !errors.Is(perr, context.Canceled) {
			err = errors.Join(err, perr)
		}
		return r, err
	}
}

func writeGrowth(w io.Writer, results []growthResult) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "subject\tids\tclaims before\tclaims/s\tx fewest\t")
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%.0f\t%.2f\t\n", r.Subject, r.IDs, r.Claims, r.PerSecond, r.TimesSmall)
	}
	return tw.Flush()
}
