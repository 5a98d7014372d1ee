package crash

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/integration/history"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

const (
	topic        = "crash.events"
	consumerName = "crash.effects"
	eventType    = "crash.made"
)

// made is the event: the seq-th change of a key.
type made struct {
	Key string `json:"key"`
	Seq int64  `json:"seq"`
}

func (m made) id() string { return m.Key + "/" + strconv.FormatInt(m.Seq, 10) }

// keyOf is the key in an event's id.
func keyOf(id string) string {
	key, _, _ := strings.Cut(id, "/")
	return key
}

var errRollback = errors.New("rolled back on purpose")

// produce changes keys until ctx ends. It remembers nothing: the row of a key has its number, and its lock
// serialises the transactions of the key in all producers, those of dead ones included.
func (c *child) produce(ctx context.Context) error {
	store, err := pgxstore.New(c.pool)
	if err != nil {
		return err
	}
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			rnd := rand.New(rand.NewPCG(c.Seed, uint64(w)))
			for ctx.Err() == nil {
				if c.paused.Load() {
					wait(ctx, 20*time.Millisecond)
					continue
				}
				err := pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
					return c.change(ctx, store, tx, rnd)
				})
				if err == nil {
					c.pass(produced)
				} else if !errors.Is(err, errRollback) {
					wait(ctx, 100*time.Millisecond) // the database is away
				}
			}
		})
	}
	workers.Wait()
	return nil
}

// change is one transaction: up to nine changes of a key, and their events.
func (c *child) change(ctx context.Context, store *pgxstore.Store, tx pgx.Tx, rnd *rand.Rand) error {
	key, n := fmt.Sprintf("k%04d", rnd.IntN(c.Keys)), 1+rnd.Int64N(9)
	var last int64
	if err := tx.QueryRow(ctx, "UPDATE crash_key SET seq = seq + $2 WHERE key = $1 RETURNING seq", key, n).Scan(&last); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO crash_made (key, seq) SELECT $1, generate_series($2::bigint, $3)", key, last-n+1, last); err != nil {
		return err
	}
	msgs := make([]*message.Message, 0, n)
	for seq := last - n + 1; seq <= last; seq++ {
		m := made{key, seq}
		msg, err := event.New(ctx, eventType, m, event.WithSource("/crash"), event.WithID(m.id()), event.WithKey(key))
		if err != nil {
			return err
		}
		msgs = append(msgs, msg)
	}
	if err := outbox.Add(ctx, store, tx, topic, msgs...); err != nil {
		return err
	}
	c.pass(added)
	if rnd.IntN(20) == 0 {
		return errRollback
	}
	return nil
}

// killable is the relay's publisher.
type killable struct {
	message.Publisher
	c *child
}

func (k killable) Publish(topic string, msgs ...*message.Message) error {
	k.c.pass(publish)
	err := k.Publisher.Publish(topic, msgs...)
	if err == nil {
		k.c.pass(published)
	}
	return err
}

func (c *child) broker() (*postgres.Broker, error) {
	return postgres.New(postgres.Config{Pool: c.pool, LeaseTTL: c.Lease, PollMax: 200 * time.Millisecond})
}

func (c *child) relay(ctx context.Context) error {
	store, err := pgxstore.New(c.pool)
	if err != nil {
		return err
	}
	broker, err := c.broker()
	if err != nil {
		return err
	}
	pub, err := broker.Publisher()
	if err != nil {
		return err
	}
	r, err := outbox.NewRelay(store.Outbox(), killable{pub, c}, outbox.RelayConfig{
		Owner: c.Name, Batch: 50, LeaseTTL: c.Lease, PublishTimeout: c.Lease / 2, DatabaseTimeout: c.Lease / 2, PollMax: 200 * time.Millisecond,
		BackoffMax: time.Second,
	})
	if err != nil {
		return err
	}
	return errors.Join(r.Run(ctx), pub.Close(), broker.Close())
}

func (c *child) consume(ctx context.Context) (err error) {
	file, err := os.OpenFile(c.History, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	log := history.NewLog(file)
	defer func() { err = errors.Join(err, log.Err(), file.Close()) }()
	store, err := pgxstore.New(c.pool, pgxstore.WithMaxConcurrency(6))
	if err != nil {
		return err
	}
	broker, err := c.broker()
	if err != nil {
		return err
	}
	rt, err := runtime.New(runtime.Config{
		Service: "crash", Broker: broker, DrainTimeout: 20 * time.Second, Logger: slog.Default(),
		Policy: runtime.Policy{
			Middleware: []message.HandlerMiddleware{c.attempts(log)},
		},
	})
	if err != nil {
		return errors.Join(err, broker.Close())
	}
	c.handle(rt.Consumer(consumerName, topic), &recorded{store, c, log})
	return errors.Join(rt.Run(ctx), broker.Close())
}

// handle registers the effect of a message: a row.
func (c *child) handle(consumer *runtime.Consumer, store *recorded) {
	group := inbox.GroupConfig{Max: 20}
	one := func(ctx context.Context, tx pgx.Tx, m made) error {
		_, err := tx.Exec(ctx, "INSERT INTO crash_effect (id, key, seq, process) VALUES ($1, $2, $3, $4)", m.id(), m.Key, m.Seq, c.Name)
		if err == nil {
			c.pass(effect)
		}
		return err
	}
	switch c.Handles {
	case plain:
		runtime.HandleTx(consumer, eventType, store, one)
	case grouped:
		runtime.HandleTx(consumer, eventType, inbox.Grouped(store, group), one)
	case batched:
		runtime.HandleBatch(consumer, eventType, store, group, func(ctx context.Context, tx pgx.Tx, events []runtime.BatchEvent[made]) error {
			var ids, keys []string
			var seqs []int64
			for _, e := range events {
				ids, keys, seqs = append(ids, e.Value.id()), append(keys, e.Value.Key), append(seqs, e.Value.Seq)
			}
			_, err := tx.Exec(ctx, "INSERT INTO crash_effect (id, key, seq, process) SELECT *, $4 FROM unnest($1::text[], $2::text[], $3::bigint[])",
				ids, keys, seqs, c.Name)
			if err == nil {
				c.pass(effect)
			}
			return err
		})
	}
}

// record is one of this process about a message.
func (c *child) record(kind history.Kind, id string) history.Record {
	return history.Record{Kind: kind, Process: c.Name, Consumer: consumerName, ID: id, Key: keyOf(id)}
}

// attempts writes when attempts begin and end.
func (c *child) attempts(log *history.Log) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			log.Write(c.record(history.Start, msg.UUID))
			out, err := next(msg)
			if err != nil {
				log.Write(c.record(history.Failed, msg.UUID))
			}
			log.Write(c.record(history.End, msg.UUID))
			return out, err
		}
	}
}

// recorded writes what is certain, once it is.
type recorded struct {
	*pgxstore.Store
	c   *child
	log *history.Log
}

func (r *recorded) outcome(id string, isNew bool) {
	kind := history.Skipped
	if isNew {
		r.c.pass(committed)
		kind = history.Effect
	}
	r.log.Write(r.c.record(kind, id[strings.LastIndexByte(id, ' ')+1:])) // without the event's source
}

func (r *recorded) Once(ctx context.Context, claim inbox.Claim, fn func(context.Context, pgx.Tx) error) (bool, error) {
	done, err := r.Store.Once(ctx, claim, fn)
	if err == nil {
		r.outcome(claim.ID, done)
	}
	return done, err
}

func (r *recorded) OnceGroup(ctx context.Context, claims []inbox.Claim, fn func(context.Context, pgx.Tx, []bool) error) error {
	var isNew []bool
	err := r.Store.OnceGroup(ctx, claims, func(ctx context.Context, tx pgx.Tx, claimed []bool) error {
		for i, claim := range claims {
			if !claimed[i] { // whatever becomes of the others
				r.outcome(claim.ID, false)
			}
		}
		isNew = claimed
		return fn(ctx, tx, claimed)
	})
	if err == nil {
		for i, claim := range claims {
			if isNew[i] {
				r.outcome(claim.ID, true)
			}
		}
	}
	return err
}

// wait lasts for d or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
