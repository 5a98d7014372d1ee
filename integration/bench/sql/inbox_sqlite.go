package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlite"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

func sqliteMain() {
	limit := flag.Duration("limit", 2*time.Second, "the longest that one measurement takes, after its first tenth")
	n := flag.Int("n", 120_000, "messages of one measurement at most")
	rounds := flag.Int("rounds", 3, "rounds of each subject; the median counts")
	format := formatFlag()
	flag.Parse()
	results, err := benchSQLite(context.Background(), *n, *rounds, *limit)
	if err == nil {
		err = emit(os.Stdout, *format, results, writeInbox)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// sqliteSubject is one way to handle messages once. All have one transaction at a time, as SQLite does.
type sqliteSubject struct {
	name     string
	inFlight int // messages
	run      func(ctx context.Context, b *sqliteBench, inFlight int) (speed, error)
}

const sqliteHand = "by hand"

var sqliteSubjects = []sqliteSubject{
	{sqliteHand, 1, sqliteByHand},
	{handleTxSubject, 1, sqliteHandleTx(0)},
	{"Grouped 50", 100, sqliteHandleTx(50)},
	{"HandleBatch 200", 400, sqliteHandleBatch(200)},
}

// sqliteBench is a file with our tables and the accounts that the effects go to.
type sqliteBench struct {
	store *sqlstore.Store
	n     int
	limit time.Duration
}

func benchSQLite(ctx context.Context, n, rounds int, limit time.Duration) ([]inboxResult, error) {
	var results []inboxResult
	for _, synchronous := range []sqlite.Synchronous{sqlite.SynchronousNormal, sqlite.SynchronousFull} {
		samples := make([][]inboxResult, len(sqliteSubjects))
		for range rounds {
			for i, s := range sqliteSubjects {
				r, err := measureSQLite(ctx, synchronous, s, n, limit)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", s.name, err)
				}
				samples[i] = append(samples[i], inboxResult{
					Bench: "sqlite", Subject: s.name + ", synchronous " + string(synchronous), InFlight: s.inFlight,
					PerSecond: r.perSecond, CPUMicros: micros(r.each.client),
				})
			}
			hand, tx := samples[0][len(samples[0])-1].PerSecond, samples[1][len(samples[1])-1].PerSecond
			for i := range samples {
				last := &samples[i][len(samples[i])-1]
				last.TimesHand, last.TimesHandleTx = last.PerSecond/hand, last.PerSecond/tx
			}
		}
		for _, s := range samples {
			results = append(results, middle(s))
		}
	}
	return results, nil
}

// measureSQLite runs a subject on a file of its own.
func measureSQLite(ctx context.Context, synchronous sqlite.Synchronous, s sqliteSubject, n int, limit time.Duration) (_ speed, err error) {
	dir, err := os.MkdirTemp("", "headrace-bench-")
	if err != nil {
		return speed{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	store, err := sqlite.Open(filepath.Join(dir, "bench.db"), sqlite.WithSynchronous(synchronous))
	if err != nil {
		return speed{}, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := store.Migrate(ctx); err != nil {
		return speed{}, err
	}
	for _, statement := range []string{
		"CREATE TABLE accounts (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)",
		fmt.Sprintf("WITH RECURSIVE i (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM i WHERE id < %d) INSERT INTO accounts SELECT id, 0 FROM i", keys-1),
	} {
		if _, err := store.DB().ExecContext(ctx, statement); err != nil {
			return speed{}, err
		}
	}
	return s.run(ctx, &sqliteBench{store, n, limit}, s.inFlight)
}

func (b *sqliteBench) rate(_ context.Context, done func() int64) (speed, error) {
	return rate(b.n, b.limit, done, func() (cost, error) { return cost{client: cpuTime()}, nil })
}

const sqliteEffect = "UPDATE accounts SET n = n + ? WHERE id = ?"

// sqliteByHand is the transaction of HandleTx, in a loop.
func sqliteByHand(ctx context.Context, b *sqliteBench, _ int) (speed, error) {
	var done atomic.Int64
	running, stop := context.WithCancel(ctx)
	work, cancel := context.WithCancel(ctx) // as everybody's, the statements' context can end
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		for i := 0; i < b.n && running.Err() == nil; i++ {
			if err := b.one(work, i); err != nil {
				ended <- err
				return
			}
			done.Add(1)
		}
		ended <- nil
	}()
	r, err := b.rate(ctx, done.Load)
	stop()
	return r, cmp.Or(<-ended, err)
}

func (b *sqliteBench) one(ctx context.Context, i int) error {
	tx, err := b.store.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // committed by then
	result, err := tx.ExecContext(ctx, "INSERT INTO headrace_inbox (consumer, id, claimed_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
		"bench.orders", messageID(i), time.Now().UnixMicro())
	if err != nil {
		return err
	}
	if rows, err := result.RowsAffected(); rows != 1 || err != nil {
		return cmp.Or(err, errDuplicate)
	}
	if _, err := tx.ExecContext(ctx, sqliteEffect, 1, i%keys); err != nil {
		return err
	}
	return tx.Commit()
}

// sqliteHandleTx is the whole runtime with one UPDATE for each message, in groups of at most group if that is above 0.
func sqliteHandleTx(group int) func(context.Context, *sqliteBench, int) (speed, error) {
	return func(ctx context.Context, b *sqliteBench, inFlight int) (speed, error) {
		return consumed(ctx, b.n, inFlight, func(c *runtime.Consumer, splits *atomic.Int64) {
			tx := inbox.Store[*sql.Tx](b.store)
			if group > 0 {
				tx = inbox.Grouped(b.store, inbox.GroupConfig{Max: group, OnSplit: func(context.Context, int, error) { splits.Add(1) }})
			}
			runtime.HandleTx(c, "posted", tx, func(ctx context.Context, tx *sql.Tx, p posting) error {
				_, err := tx.ExecContext(ctx, sqliteEffect, p.Amount, p.Account)
				return err
			})
		}, b.rate)
	}
}

// sqliteHandleBatch is the whole runtime with a batch at a time. SQLite has no arrays: the effect is one UPDATE each, prepared once for the batch.
func sqliteHandleBatch(group int) func(context.Context, *sqliteBench, int) (speed, error) {
	return func(ctx context.Context, b *sqliteBench, inFlight int) (speed, error) {
		return consumed(ctx, b.n, inFlight, func(c *runtime.Consumer, splits *atomic.Int64) {
			config := inbox.GroupConfig{Max: group, OnSplit: func(context.Context, int, error) { splits.Add(1) }}
			runtime.HandleBatch(c, "posted", b.store, config, func(ctx context.Context, tx *sql.Tx, events []runtime.BatchEvent[posting]) error {
				update, err := tx.PrepareContext(ctx, sqliteEffect)
				if err != nil {
					return err
				}
				defer update.Close() //nolint:errcheck // the transaction ends it anyway
				for _, e := range events {
					if _, err := update.ExecContext(ctx, e.Value.Amount, e.Value.Account); err != nil {
						return err
					}
				}
				return nil
			})
		}, b.rate)
	}
}
