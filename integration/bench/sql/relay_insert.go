package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/outbox"
)

// benchInsert compares a transaction of one update with the same and one outbox row, 32 at once: in a
// transaction of the inbox, where the row goes with the COMMIT; by hand with the same statements in the same flights, and by hand
// with one round trip for each statement.
func benchInsert(ctx context.Context, url string, o relayOptions) ([]relayResult, error) {
	d, err := openDatabase(ctx, url)
	if err != nil {
		return nil, err
	}
	results, err := d.inserts(ctx, o)
	return results, errors.Join(err, d.close())
}

const accountUpdate = "UPDATE account SET balance = balance + 1 WHERE id = $1"

func (d *database) inserts(ctx context.Context, o relayOptions) ([]relayResult, error) {
	if _, err := d.pool.Exec(ctx, "CREATE TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50)"); err != nil {
		return nil, err
	}
	if _, err := d.pool.Exec(ctx, "INSERT INTO account SELECT i, 0 FROM generate_series(0, 9999) i"); err != nil {
		return nil, err
	}
	var id atomic.Int64
	effect := func(ctx context.Context, tx pgx.Tx, i int, add bool) error {
		if _, err := tx.Exec(ctx, accountUpdate, i*7919%10_000); err != nil || !add {
			return err
		}
		return outbox.Add(ctx, d.store, tx, relayTopic, relayMessage(i))
	}
	byHand := func(i int, add bool) error {
		return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error { return effect(ctx, tx, i, add) })
	}
	once := func(i int, add bool) error {
		_, err := d.store.Once(ctx, inbox.Claim{Consumer: "bench", ID: fmt.Sprint("message-", i)}, func(ctx context.Context, tx pgx.Tx) error {
			return effect(ctx, tx, i, add)
		})
		return err
	}
	var results []relayResult
	for _, kind := range []struct {
		name string
		tx   func(i int, add bool) error
	}{
		{"inbox and UPDATE", once},
		{"inbox and UPDATE by hand, pipelined", func(i int, add bool) error { return d.pipelined(ctx, i, add) }},
		{"UPDATE by hand", byHand},
	} {
		subjects := []string{kind.name, kind.name + ", with an outbox row"}
		samples := make([][]relayResult, len(subjects))
		for range o.Rounds {
			for i := range subjects {
				// What the last one left is not its successor's.
				if _, err := d.pool.Exec(ctx, "TRUNCATE headrace_inbox, headrace_outbox"); err != nil {
					return nil, err
				}
				if _, err := d.pool.Exec(ctx, "VACUUM account"); err != nil {
					return nil, err
				}
				r, err := d.perSecond(ctx, o, func() error { return kind.tx(int(id.Add(1)), i == 1) })
				if err != nil {
					return nil, fmt.Errorf("insert: %s: %w", subjects[i], err)
				}
				r.Bench, r.Subject = "insert", subjects[i]
				samples[i] = append(samples[i], r)
			}
			for i := range samples {
				last := len(samples[i]) - 1
				samples[i][last].Ratio = samples[i][last].PerSec / samples[0][last].PerSec
			}
		}
		for _, s := range samples {
			r := s[0]
			r.PerSec = median(s, func(r relayResult) float64 { return r.PerSec })
			r.Ratio = median(s, func(r relayResult) float64 { return r.Ratio })
			r.CPUMicros = median(s, func(r relayResult) float64 { return r.CPUMicros })
			r.ServerMicros = median(s, func(r relayResult) float64 { return r.ServerMicros })
			r.WALBytes = median(s, func(r relayResult) float64 { return r.WALBytes })
			results = append(results, r)
		}
	}
	return results, nil
}

// pipelined is what the inbox's transaction sends, by hand.
func (d *database) pipelined(ctx context.Context, i int, add bool) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var first pgx.Batch
	first.BeginTx(pgx.TxOptions{})
	first.Queue("INSERT INTO headrace_inbox (consumer, id) VALUES ($1, $2) ON CONFLICT DO NOTHING", "bench", fmt.Sprint("message-", i))
	results := conn.SendBatch(ctx, &first)
	_, err = results.Exec()
	tag, claimErr := results.Exec()
	tx := results.Tx()
	if err := cmp.Or(err, claimErr, results.Close()); err != nil {
		return err
	}
	if tag.RowsAffected() != 1 {
		return cmp.Or(tx.Rollback(ctx), errDuplicate)
	}
	if _, err := tx.Exec(ctx, accountUpdate, i*7919%10_000); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	if !add {
		return tx.Commit(ctx)
	}
	msg := relayMessage(i)
	metadata, err := outbox.EncodeMetadata(msg.Metadata)
	if err != nil {
		return err
	}
	var last pgx.Batch
	last.Queue("INSERT INTO headrace_outbox (topic, bucket, msg_key, uuid, metadata, payload) VALUES ($1, $2, $3, $4, $5, $6)",
		relayTopic, i%outbox.Buckets, fmt.Sprintf("key-%03d", i%1_000), msg.UUID, metadata, []byte(msg.Payload))
	last.Queue("commit")
	return conn.SendBatch(ctx, &last).Close()
}

// perSecond calls f from 32 goroutines.
func (d *database) perSecond(ctx context.Context, o relayOptions, f func() error) (relayResult, error) {
	const clients = 32
	var n atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, clients)
	before, err := costNow(ctx, d.pool, o.Postmaster)
	if err != nil {
		return relayResult{}, err
	}
	begin := time.Now()
	for c := range clients {
		wg.Go(func() {
			for time.Since(begin) < o.Limit && errs[c] == nil {
				errs[c] = f()
				n.Add(1)
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	after, err := costNow(ctx, d.pool, o.Postmaster)
	if err := errors.Join(slices.Concat(errs, []error{err})...); err != nil {
		return relayResult{}, err
	}
	each := after.sub(before).of(n.Load())
	return relayResult{
		PerSec: float64(n.Load()) / took.Seconds(), CPUMicros: micros(each.client), ServerMicros: micros(each.server), WALBytes: float64(each.wal),
	}, nil
}

// ratios are the medians, each beside the first subject's.
func ratios(bench, sink string, subjects []string, samples [][]float64) []relayResult {
	list := make([]relayResult, len(subjects))
	for i, s := range samples {
		slices.Sort(s)
		list[i] = relayResult{Bench: bench, Sink: sink, Subject: subjects[i], PerSec: s[len(s)/2]}
		list[i].Ratio = list[i].PerSec / list[0].PerSec
	}
	return list
}
