package kafka_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/testserver"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/pgxstore"
	"github.com/headrace-go/headrace/stores/sqlite"
)

// Members join, leave, and are cut off and live on as zombies, and handlers fail. Everything that was not committed to Kafka in time is
// delivered again, to others and at the same moment. With an inbox each message has one effect, in the order of its key.
func TestStormOfKillsWithAnInboxHasEachEffectOnce(t *testing.T) {
	_, seeds := fake(t)
	store, err := sqlite.Open(filepath.Join(t.TempDir(), "effects.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.DB().ExecContext(t.Context(), `CREATE TABLE effects (n INTEGER PRIMARY KEY AUTOINCREMENT, k TEXT, seq INTEGER)`); err != nil {
		t.Fatal(err)
	}
	stormWithInbox(t, seeds, effects[*sql.Tx]{
		store: store,
		add: func(ctx context.Context, tx *sql.Tx, n numberedEvent) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (k, seq) VALUES ($1, $2)`, n.Key, n.Seq)
			return err
		},
		all: func(ctx context.Context) (all []numberedEvent, err error) {
			rows, err := store.DB().QueryContext(ctx, `SELECT k, seq FROM effects ORDER BY n`)
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			for rows.Next() {
				var n numberedEvent
				if err := rows.Scan(&n.Key, &n.Seq); err != nil {
					return nil, err
				}
				all = append(all, n)
			}
			return all, rows.Err()
		},
	})
}

func TestStormOfKillsWithAnInboxHasEachEffectOnceOnKafkaAndPostgres(t *testing.T) {
	seeds, url := real(t), testserver.Postgres(t)
	own := fmt.Sprintf("storm_%d", time.Now().UnixNano())
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["search_path"] = own
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), "CREATE SCHEMA "+own); err != nil {
		t.Fatal(err)
	}
	defer pool.Exec(context.WithoutCancel(t.Context()), "DROP SCHEMA "+own+" CASCADE") //nolint:errcheck // best effort
	store, err := pgxstore.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `CREATE TABLE effects (n BIGSERIAL PRIMARY KEY, k TEXT, seq INT)`); err != nil {
		t.Fatal(err)
	}
	stormWithInbox(t, seeds, effects[pgx.Tx]{
		store: store,
		add: func(ctx context.Context, tx pgx.Tx, n numberedEvent) error {
			_, err := tx.Exec(ctx, `INSERT INTO effects (k, seq) VALUES ($1, $2)`, n.Key, n.Seq)
			return err
		},
		all: func(ctx context.Context) ([]numberedEvent, error) {
			rows, err := pool.Query(ctx, `SELECT k, seq FROM effects ORDER BY n`)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowToStructByPos[numberedEvent])
		},
	})
}

type numberedEvent struct {
	Key string
	Seq int
}

// effects is where handlers leave them.
type effects[Tx any] struct {
	store inbox.Store[Tx]
	add   func(context.Context, Tx, numberedEvent) error
	all   func(context.Context) ([]numberedEvent, error) // in the order in which they were added
}

// service is a whole runtime on a broker whose connections can be cut.
type service struct {
	net    *network
	broker *kafka.Broker
	cancel context.CancelFunc
	ended  chan error
}

func stormWithInbox[Tx any](t *testing.T, seeds []string, e effects[Tx]) {
	const keys, each, partitions, rounds = 20, 15, 4, 8
	topic := "inbox." + rand.Text()
	makeTopic(t, seeds, topic, partitions)
	publishEvents(t, seeds, topic, keys, each)
	seed := mathrand.Uint64()
	t.Logf("seed %d", seed)
	r := mathrand.New(mathrand.NewPCG(seed, 0))

	var live []*service
	start := func() {
		s := &service{net: newNetwork(t), ended: make(chan error, 1)}
		config := kafka.Config{
			Seeds: seeds, CommitInterval: 20 * time.Millisecond, CommitTimeout: time.Second, RevokeWait: 2 * time.Second,
			CloseTimeout: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
			Options: []kgo.Opt{
				kgo.HeartbeatInterval(50 * time.Millisecond), kgo.SessionTimeout(time.Second), kgo.RebalanceTimeout(4 * time.Second),
				kgo.MetadataMinAge(50 * time.Millisecond), kgo.RequestRetries(3), kgo.Dialer(s.net.dial),
			},
		}
		var err error
		if s.broker, err = kafka.New(config); err != nil {
			t.Fatal(err)
		}
		rt, err := runtime.New(runtime.Config{
			Service: "storm", Broker: s.broker, Logger: slog.New(slog.DiscardHandler), DrainTimeout: 5 * time.Second,
			Policy: runtime.Policy{Retry: middleware.RetryConfig{MaxAttempts: 20, InitialDelay: time.Millisecond, MaxDelay: 5 * time.Millisecond}},
		})
		if err != nil {
			t.Fatal(err)
		}
		runtime.HandleTx(rt.Consumer(topic, topic), "effect", e.store, func(ctx context.Context, tx Tx, n numberedEvent) error {
			if err := e.add(ctx, tx, n); err != nil {
				return err
			}
			if mathrand.IntN(20) == 0 {
				return errors.New("after the effect, which goes with it")
			}
			return wait(ctx, jitter(4*time.Millisecond))
		})
		ctx, cancel := context.WithCancel(context.Background())
		s.cancel = cancel
		go func() { s.ended <- rt.Run(ctx) }()
		live = append(live, s)
	}
	end := func(i int, kill bool) {
		s := live[i]
		live = slices.Delete(live, i, i+1)
		if kill {
			s.net.cut()
		}
		s.cancel()
		if err := <-s.ended; err != nil && !kill {
			t.Errorf("Run returned %v, want nil", err)
		}
		if err := s.broker.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	defer func() {
		for len(live) > 0 {
			end(0, false)
		}
	}()
	count := func() int {
		all, err := e.all(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	start()
	kills := 0
	for range rounds {
		<-time.After(time.Duration(r.Int64N(int64(250 * time.Millisecond)))) // the storm's own time: there is nothing to wait for
		switch i := r.IntN(len(live)); {
		case len(live) < 2 || len(live) < 4 && r.IntN(2) == 0:
			start()
		case r.IntN(3) > 0:
			end(i, true)
			kills++
		default:
			end(i, false)
		}
	}
	eventually(t, "all messages have an effect", 2*time.Minute, func() bool { return count() >= keys*each })
	for len(live) > 0 {
		end(0, false)
	}
	all, err := e.all(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next := make(map[string]int)
	for i, n := range all {
		if n.Seq != next[n.Key] {
			t.Errorf("effect %d is message %d of key %s, want %d", i, n.Seq, n.Key, next[n.Key])
		}
		next[n.Key] = n.Seq + 1
	}
	if len(all) != keys*each {
		t.Errorf("%d effects of %d messages, want one of each", len(all), keys*each)
	}
	t.Logf("%d kills, %d effects", kills, len(all))
}

func publishEvents(t *testing.T, seeds []string, topic string, keys, each int) {
	t.Helper()
	b := open(t, quick(seeds))
	var all []*message.Message
	for seq := range each {
		for k := range keys {
			n := numberedEvent{strconv.Itoa(k), seq}
			msg, err := event.New(event.ContextWithSource(t.Context(), "/storm"), "effect", n, event.WithKey(n.Key))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, msg)
		}
	}
	if err := publisher(t, b).Publish(topic, all...); err != nil {
		t.Fatal(err)
	}
}
