package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

var errRollback = errors.New("rolled back on purpose")

// most is how many events a transaction has at most.
const most = 8

// produce changes keys until ctx ends. It remembers nothing: a key's row has its number.
func (w *worker) produce(ctx context.Context) error {
	store, err := pgxstore.New(w.pool, pgxstore.WithSchema(w.schema()))
	if err != nil {
		return err
	}
	w.began = true
	rnd := rand.New(rand.NewPCG(w.Seed, uint64(time.Now().UnixNano())))
	looked, behind := time.Time{}, false
	for ctx.Err() == nil {
		if time.Since(looked) > time.Second {
			if p, err := look(ctx, w.pool, w.schema(), false); err == nil {
				looked, behind = time.Now(), p.Made-p.Effects-p.Dead > w.Backlog
			}
		}
		if behind {
			pause(ctx, 100*time.Millisecond)
			continue
		}
		n := 1 + rnd.IntN(most)
		began := time.Now()
		err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			if err := w.change(ctx, store, tx, fmt.Sprintf("k%03d", rnd.IntN(keys)), n, false); err != nil {
				return err
			}
			if rnd.IntN(20) == 0 {
				return errRollback
			}
			return nil
		})
		if err != nil && !errors.Is(err, errRollback) {
			pause(ctx, 100*time.Millisecond) // the database is away
			continue
		}
		pause(ctx, time.Duration(n)*time.Second/time.Duration(w.Rate)-time.Since(began))
	}
	return nil
}

// change is a transaction's part: n changes of a key, and their events.
func (s spec) change(ctx context.Context, store *pgxstore.Store, tx pgx.Tx, key string, n int, poison bool) error {
	var last int64
	if err := tx.QueryRow(ctx, "UPDATE "+s.schema()+".key SET seq = seq + $2 WHERE key = $1 RETURNING seq", key, n).Scan(&last); err != nil {
		return err
	}
	first := last - int64(n) + 1
	if _, err := tx.Exec(ctx, "INSERT INTO "+s.schema()+".made (key, seq, poison) SELECT $1, generate_series($2::bigint, $3), $4", key, first, last, poison); err != nil {
		return err
	}
	msgs := make([]*message.Message, 0, n)
	for seq := first; seq <= last; seq++ {
		m := made{key, seq, poison}
		msg, err := event.New(ctx, eventType, m, event.WithSource("/chaos"), event.WithID(m.id()), event.WithKey(key))
		if err != nil {
			return err
		}
		msgs = append(msgs, msg)
	}
	return outbox.Add(ctx, store, tx, s.topic(), msgs...)
}

// poison makes n events that cannot be handled, each of a key of its own, for as long as it takes to commit them.
func (s spec) poison(ctx context.Context, store *pgxstore.Store, n, pick int) error {
	for i := range n {
		key := fmt.Sprintf("k%03d", (pick+i*7)%keys)
		for {
			err := pgx.BeginFunc(ctx, store.Pool(), func(tx pgx.Tx) error { return s.change(ctx, store, tx, key, 1, true) })
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return err
			}
			pause(ctx, 100*time.Millisecond) // the database is away; a commit of which nothing was heard only makes one event more
		}
	}
	return nil
}

// relay publishes the outbox until ctx ends.
func (w *worker) relay(ctx context.Context) error {
	store, err := pgxstore.New(w.pool, pgxstore.WithSchema(w.schema()))
	if err != nil {
		return err
	}
	broker, end, err := w.open(w.pool)
	if err != nil {
		return err
	}
	pub, err := broker.Publisher()
	if err != nil {
		return errors.Join(err, end())
	}
	r, err := outbox.NewRelay(store.Outbox(), pub, outbox.RelayConfig{
		Owner: w.Name, LeaseTTL: lease, PublishTimeout: lease / 2, DatabaseTimeout: lease / 2, PollMax: 250 * time.Millisecond, BackoffMax: time.Second,
	})
	if err == nil {
		w.began = true
		err = r.Run(ctx)
	}
	return errors.Join(err, pub.Close(), end())
}
