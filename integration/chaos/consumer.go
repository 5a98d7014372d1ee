package main

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/integration/history"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

var (
	errPoison  = errors.New("this event cannot be handled")
	errAway    = errors.New("a dependency is away")
	errCondemn = errors.New("sabotage: this event could be handled")
)

// consume runs the consumer and that of its dead letters until ctx ends.
func (w *worker) consume(ctx context.Context) (err error) {
	file, err := os.OpenFile(w.History, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	log := history.NewLog(file)
	defer func() { err = errors.Join(err, log.Err(), file.Close()) }()
	store, err := pgxstore.New(w.pool, pgxstore.WithSchema(w.schema()))
	if err != nil {
		return err
	}
	broker, end, err := w.open(w.pool)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	rt, err := runtime.New(runtime.Config{
		Service: "chaos", Broker: recordingBroker{broker, w, log}, DrainTimeout: drainLimit, Logger: slog.Default(),
	})
	if err != nil {
		return err
	}
	config := runtime.ConsumerConfig{Name: w.effects(), Topic: w.topic(), Policy: runtime.Policy{
		Middleware: []message.HandlerMiddleware{w.attempts(log)},
	}}
	if w.Sabotage == unordered {
		config.Key = func(m *message.Message) string { return m.Metadata[event.MetaID] }
	}
	runtime.HandleTx(rt.ConsumerWith(config), eventType, inbox.Store[pgx.Tx](&recordingStore{store, w, log}), w.handle)
	runtime.HandleDeadLettersTx(rt.Consumer(w.deadLetters(), w.topic()+poison.Suffix), inbox.Store[pgx.Tx](store), w.bury)
	err = rt.Run(ctx)
	select {
	case <-rt.Running():
		w.began = true
	default:
	}
	return err
}

const effectStatement = `WITH s AS (
	UPDATE {s}.state s SET seq = $2, effects = effects + 1 FROM (SELECT seq FROM {s}.state WHERE key = $1 FOR UPDATE) o WHERE s.key = $1 RETURNING o.seq
) INSERT INTO {s}.effect (key, seq, prev, process) SELECT $1, $2, s.seq, $3 FROM s`

// handle is the application's handler.
func (w *worker) handle(ctx context.Context, tx pgx.Tx, m made) error {
	if _, err := os.Stat(w.Outage); err == nil {
		return errAway
	}
	if m.Poison {
		return classify.Permanent(errPoison)
	}
	times := 1
	if w.Sabotage == unordered && rand.IntN(rarely) == 0 {
		pause(ctx, 300*time.Millisecond)
	}
	if m.Seq%rarely == 0 {
		switch w.Sabotage {
		case condemn:
			return classify.Permanent(errCondemn)
		case skip:
			times = 0
		case twice:
			times = 2
		default:
		}
	}
	for range times {
		if _, err := tx.Exec(ctx, strings.ReplaceAll(effectStatement, "{s}", w.schema()), m.Key, m.Seq, w.Name); err != nil {
			return err
		}
	}
	return nil
}

// bury keeps what there is of dead letters.
func (w *worker) bury(ctx context.Context, tx pgx.Tx, r poison.Record) error {
	m, err := parseID(r.Metadata[event.MetaID])
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "INSERT INTO "+w.schema()+".dead (key, seq, attempts, error) VALUES ($1, $2, $3, $4)", m.Key, m.Seq, r.Attempts, r.Error)
	return err
}
