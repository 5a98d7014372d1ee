//go:build unix

package failures_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/testserver"
	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// crashDir makes this test binary a service that one message kills, run again and again as an orchestrator does. What
// is in the directory tells it what it is.
const crashDir = "HEADRACE_TEST_FAILURES_DIR"

// crashPlan is what the service is to do. It is in plan.json.
type crashPlan struct {
	Seeds, Address string // of Kafka, of Postgres
	Schema         string // of this test, and the beginning of its topics and consumers
	Messages       int    // all in flight when the first two lives end
	Killer         string // the id of the one that kills
}

// crashLimit bounds a life of the service.
const crashLimit = 5 * time.Minute

// A message killed the process with every start, and what counted deliveries would have dead-lettered the messages
// beside it too. ledger has this on JetStream and SQLite.
func TestR5ProcessKillerAmongManyOnKafkaAndPostgres(t *testing.T) {
	plan := crashPlan{Seeds: testserver.Kafka(t), Address: testserver.Postgres(t), Messages: size().inFlight}
	plan.Schema, plan.Killer = ownSchema(t, plan.Address), orderID(plan.Messages/2, 1)
	dir := t.TempDir()
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "plan.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	began, lives := time.Now(), 0
	for ended := false; !ended; {
		lives++
		life := time.Now()
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		child.Env = append(os.Environ(), crashDir+"="+dir)
		out, err := child.CombinedOutput()
		switch killed := child.ProcessState.ExitCode() == -1; {
		case err == nil:
			ended = true
		case !killed || lives > 5:
			t.Fatalf("life %d: %v\n%s", lives, err, out[max(0, len(out)-4000):])
		}
		t.Logf("life %d: %v after %v", lives, err, time.Since(life).Round(time.Millisecond))
	}

	starts, graves := read(t, dir, "starts"), read(t, dir, "dead")
	t.Logf("%d in flight: the killer was started %d times; %d lives in %v; dead letters: %s",
		plan.Messages, len(starts), lives, time.Since(began).Round(time.Millisecond), graves)
	if len(starts) > 5 {
		t.Errorf("the killer was started %d times, want at most 5", len(starts))
	}
	if want := fmt.Sprintf("ce:/shop %s ledger.CrashLoopError\n", plan.Killer); graves != want {
		t.Errorf("dead letters %q, want %q alone", graves, want)
	}
	var got []string
	for id, n := range crashEffects(t, plan) {
		got = append(got, id)
		if n != 1 {
			t.Errorf("%s took effect %d times, want once", id, n)
		}
	}
	var want []string
	for i := range plan.Messages {
		if id := orderID(i, 1); id != plan.Killer {
			want = append(want, id)
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("%d orders took effect, want %d: all but the killer", len(got), len(want))
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// crashEffects tells how often each order took effect.
func crashEffects(t *testing.T, plan crashPlan) map[string]int {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), plan.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // it only read
	rows, err := conn.Query(t.Context(), "SELECT id FROM "+plan.Schema+".effects")
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for _, id := range ids {
		times[id]++
	}
	return times
}

// crashMain is one life of the service. It ends with 0 when every message has been settled.
func crashMain(dir string) int {
	if err := crashLife(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func crashLife(dir string) error {
	var plan crashPlan
	text, err := os.ReadFile(filepath.Join(dir, "plan.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &plan); err != nil {
		return err
	}
	life, err := appendTo(dir, "lives", "x")
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	config := kafkaConfig(plan.Seeds, logger)
	config.InstanceID = "the one" // its partitions are its own again after a death, without a wait
	broker, err := kafka.New(config)
	if err != nil {
		return err
	}
	defer broker.Close() // the process ends
	ctx, stop := context.WithTimeout(context.Background(), crashLimit)
	defer stop()
	pool, err := pgxpool.New(ctx, plan.Address)
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := pgxstore.New(pool, pgxstore.WithSchema(plan.Schema))
	if err != nil {
		return err
	}
	if life == 1 {
		if err := errors.Join(store.Migrate(ctx), crashPublish(broker, plan)); err != nil {
			return err
		}
	}
	rt, err := runtime.New(runtime.Config{
		Service: "orders", Broker: broker, Logger: logger,
		Ledger: ledger.Config{Store: store.Ledger(), Instance: "the one"},
		Policy: runtime.Policy{Window: plan.Messages, Concurrency: plan.Messages, Timeout: runtime.Off},
	})
	if err != nil {
		return err
	}
	work := rt.Consumer(plan.Schema+".work", plan.topic())
	runtime.HandleMessage(work, orderPlaced, crashHandler(dir, plan, life, store))
	var mu sync.Mutex
	seen := map[string]bool{}
	graves := rt.Consumer(plan.Schema+".graves", plan.topic()+poison.Suffix)
	runtime.HandleDeadLetters(graves, func(_ context.Context, r poison.Record) error {
		mu.Lock()
		defer mu.Unlock()
		if seen[r.ID] {
			return nil
		}
		seen[r.ID] = true
		_, err := appendTo(dir, "dead", fmt.Sprintf("%s %s\n", r.MessageID, r.ErrorType))
		return err
	})
	return crashUntilSettled(ctx, stop, rt, func() (bool, error) {
		var n int
		if err := pool.QueryRow(ctx, "SELECT count(*) FROM "+plan.Schema+".effects").Scan(&n); err != nil {
			return false, err
		}
		dead, err := os.ReadFile(filepath.Join(dir, "dead"))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return n+bytes.Count(dead, []byte("\n")) >= plan.Messages, err
	})
}

// crashUntilSettled runs the service until everything was settled.
func crashUntilSettled(ctx context.Context, stop func(), rt *runtime.Runtime, settled func() (bool, error)) error {
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return errors.Join(err, errors.New("not everything was settled"))
		case <-tick.C:
		}
		done, err := settled()
		if err != nil {
			return err
		}
		if done {
			stop()
			return <-ended
		}
	}
}

func (p crashPlan) topic() string { return p.Schema + ".orders" }

func crashPublish(broker *kafka.Broker, plan crashPlan) error {
	pub, err := broker.Publisher()
	if err != nil {
		return err
	}
	var msgs []*message.Message
	for i := range plan.Messages {
		id := orderID(i, 1)
		msg, err := event.New(event.ContextWithSource(context.Background(), "/shop"), orderPlaced, order{}, event.WithID(id), event.WithKey(keyOf(id)))
		if err != nil {
			return err
		}
		msgs = append(msgs, msg)
	}
	return errors.Join(pub.Publish(plan.topic(), msgs...), pub.Close())
}

// crashHandler writes an effect once, or kills the process.
func crashHandler(dir string, plan crashPlan, life int, store *pgxstore.Store) func(*message.Message) error {
	var running atomic.Int64
	together := make(chan struct{})
	return func(msg *message.Message) error {
		ctx, id := msg.Context(), msg.Metadata[event.MetaID]
		if id == plan.Killer {
			if _, err := appendTo(dir, "starts", "x"); err != nil {
				return err
			}
		}
		if life <= 2 { // all are in flight when the killer kills
			if int(running.Add(1)) == plan.Messages {
				close(together)
			}
			select {
			case <-together:
			case <-ctx.Done():
				return ctx.Err()
			}
			if id != plan.Killer {
				<-ctx.Done()
				return ctx.Err()
			}
		}
		if id == plan.Killer {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				return err
			}
			select {}
		}
		_, err := store.Once(ctx, inbox.Claim{Consumer: plan.Schema, ID: id}, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO "+plan.Schema+".effects (id) VALUES ($1)", id)
			return err
		})
		return err
	}
}

// appendTo appends text to a file and returns how long it is then.
func appendTo(dir, name, text string) (int, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	if _, err := f.WriteString(text); err != nil {
		return 0, errors.Join(err, f.Close())
	}
	info, err := f.Stat()
	if err != nil {
		return 0, errors.Join(err, f.Close())
	}
	return int(info.Size()), f.Close()
}
