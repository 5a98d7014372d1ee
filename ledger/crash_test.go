//go:build unix

package ledger_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/testserver"
	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/ledger/file"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/pgxstore"
	"github.com/headrace-go/headrace/stores/sqlite"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

// The crash tests run this test binary as a service, again and again, as an orchestrator does. What it finds in
// its directory tells it what it is.
const crashDir = "HEADRACE_TEST_LEDGER_DIR"

// crashPlan is what the service is to do. It is in plan.json.
type crashPlan struct {
	Messages int    // numbered from 0
	Killers  []int  // and how they kill:
	How      string // "sigkill", "exit", "panic", "stack"
	Together int    // the first two lives kill when so many handlers run
	Ledger   string // "sqlite", "file"; "postgres" with Kafka as the broker

	// Of Kafka and Postgres: the servers, and the names that are this test's alone.
	Kafka, Postgres, Topic, Schema string
}

const (
	crashConsumer = "orders.work"
	crashLimit    = 5 * time.Minute
)

// crashMain is one life of the service. It ends with 0 when every message has been settled.
func crashMain(dir string) int {
	if err := crashLife(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func crashLife(dir string) (err error) {
	var plan crashPlan
	text, err := os.ReadFile(filepath.Join(dir, "plan.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &plan); err != nil {
		return err
	}
	lives, err := note(dir, "lives", "x")
	if err != nil {
		return err
	}
	var closers []func() error
	defer func() {
		for i := len(closers) - 1; i >= 0; i-- {
			err = errors.Join(err, closers[i]())
		}
	}()
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	broker, err := crashBroker(dir, plan, logger, &closers)
	if err != nil {
		return err
	}
	store, err := crashEffects(dir, plan)
	if err != nil {
		return err
	}
	closers = append(closers, store.close)
	cfg := ledger.Config{Instance: "the one", Store: store.ledger}
	switch plan.Ledger {
	case "sqlite":
		own, err := crashStore(dir, "ledger.db")
		if err != nil {
			return err
		}
		closers = append(closers, own.Close)
		cfg.Store = own.Ledger()
	case "file":
		own, err := file.Open(filepath.Join(dir, "ledger"))
		if err != nil {
			return err
		}
		closers = append(closers, own.Close)
		cfg.Store = own
	}
	if lives == 1 {
		if err := crashPublish(broker, plan); err != nil {
			return err
		}
	}
	return crashRun(dir, plan, lives, broker, store, cfg, logger)
}

func crashBroker(dir string, plan crashPlan, logger *slog.Logger, closers *[]func() error) (brokers.Broker, error) {
	if plan.Kafka != "" {
		broker, err := kafka.New(kafka.Config{
			Seeds: strings.Split(plan.Kafka, ","), Logger: logger, Partitions: 4, Replicas: 1,
			InstanceID: "the one", // it comes back before it is missed
		})
		if err == nil {
			*closers = append(*closers, broker.Close)
		}
		return broker, err
	}
	server, err := embedded.Start(embedded.Config{Dir: filepath.Join(dir, "jetstream"), Logger: logger})
	if err != nil {
		return nil, err
	}
	*closers = append(*closers, server.Close)
	broker, err := jetstream.New(jetstream.Config{Server: server, AckWait: 10 * time.Second, Logger: logger})
	if err == nil {
		*closers = append(*closers, broker.Close)
	}
	return broker, err
}

// effects is a database with the service's effects, each of them once.
type effects struct {
	once   func(ctx context.Context, c inbox.Claim) (bool, error)
	count  func(ctx context.Context) (rows, ids int, err error)
	ledger ledger.Store
	close  func() error
}

const (
	createEffects = "CREATE TABLE IF NOT EXISTS effects (id TEXT NOT NULL)"
	countEffects  = "SELECT count(*), count(DISTINCT id) FROM effects"
)

func crashEffects(dir string, plan crashPlan) (*effects, error) {
	ctx := context.Background()
	if plan.Postgres != "" {
		cfg, err := pgxpool.ParseConfig(plan.Postgres)
		if err != nil {
			return nil, err
		}
		cfg.ConnConfig.RuntimeParams["search_path"] = plan.Schema
		cfg.MaxConns = 12
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			return nil, err
		}
		store, err := pgxstore.New(pool, pgxstore.WithSchema(plan.Schema))
		if err == nil {
			err = store.Migrate(ctx)
		}
		if err == nil {
			_, err = pool.Exec(ctx, createEffects)
		}
		return &effects{
			once: func(ctx context.Context, c inbox.Claim) (bool, error) {
				return store.Once(ctx, c, func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "INSERT INTO effects (id) VALUES ($1)", c.ID)
					return err
				})
			},
			count: func(ctx context.Context) (rows, ids int, err error) {
				err = pool.QueryRow(ctx, countEffects).Scan(&rows, &ids)
				return rows, ids, err
			},
			ledger: store.Ledger(),
			close:  func() error { pool.Close(); return nil },
		}, err
	}
	store, err := crashStore(dir, "effects.db")
	if err != nil {
		return nil, err
	}
	if _, err := store.DB().ExecContext(ctx, createEffects); err != nil {
		return nil, err
	}
	return &effects{
		once: func(ctx context.Context, c inbox.Claim) (bool, error) {
			return store.Once(ctx, c, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO effects (id) VALUES (?)", c.ID)
				return err
			})
		},
		count: func(ctx context.Context) (rows, ids int, err error) {
			err = store.DB().QueryRowContext(ctx, countEffects).Scan(&rows, &ids)
			return rows, ids, err
		},
		close: store.Close,
	}, nil
}

func crashStore(dir, name string) (*sqlstore.Store, error) {
	store, err := sqlite.Open(filepath.Join(dir, name), sqlite.WithSynchronous(sqlite.SynchronousNormal))
	if err != nil {
		return nil, err
	}
	return store, store.Migrate(context.Background())
}

func crashPublish(broker brokers.Broker, plan crashPlan) error {
	pub, err := broker.Publisher()
	if err != nil {
		return err
	}
	var msgs []*message.Message
	for i := range plan.Messages {
		id := fmt.Sprintf("%05d", i)
		msg, err := event.New(event.ContextWithSource(context.Background(), "/shop"), "placed", i, event.WithID(id), event.WithKey(id))
		if err != nil {
			return err
		}
		msgs = append(msgs, msg)
	}
	return errors.Join(pub.Publish(plan.Topic, msgs...), pub.Close())
}

// crashRun runs the service until everything was settled.
func crashRun(dir string, plan crashPlan, life int, broker brokers.Broker, store *effects, cfg ledger.Config, logger *slog.Logger) error {
	rt, err := runtime.New(runtime.Config{
		Service: "orders", Broker: broker, Logger: logger, Ledger: cfg,
		Policy: runtime.Policy{Window: 1024, Concurrency: 1024, Timeout: runtime.Off},
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), crashLimit)
	defer stop()
	work := rt.Consumer(crashConsumer, plan.Topic)
	runtime.HandleMessage(work, "placed", crashHandler(dir, plan, life, store))

	var mu sync.Mutex
	graves := rt.Consumer("orders.graves", plan.Topic+poison.Suffix)
	runtime.HandleDeadLetters(graves, func(_ context.Context, r poison.Record) error {
		mu.Lock()
		defer mu.Unlock()
		// A copy, or one whose ack an earlier life took along, is the same dead letter.
		known, err := os.ReadFile(filepath.Join(dir, "dead"))
		if err != nil && !errors.Is(err, os.ErrNotExist) || bytes.Contains(known, []byte(r.ID)) {
			return err
		}
		_, err = note(dir, "dead", fmt.Sprintf("%s %s %s %s\n", r.ID, r.MessageID, r.ErrorType, r.Error))
		return err
	})
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	if err = crashWait(ctx, dir, plan, store); err != nil {
		err = fmt.Errorf("%w; %+v; %+v", err, rt.LedgerStats(), work.Stats())
	}
	stop()
	return errors.Join(err, <-ended)
}

// crashWait waits until every message has an effect or a dead letter.
func crashWait(ctx context.Context, dir string, plan crashPlan, store *effects) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		effects, _, err := store.count(context.WithoutCancel(ctx))
		if err != nil {
			return fmt.Errorf("not everything was settled: count effects: %w", err)
		}
		graves, err := os.ReadFile(filepath.Join(dir, "dead"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if effects+bytes.Count(graves, []byte("\n")) >= plan.Messages {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not everything was settled: %d effects, dead letters: %s", effects, graves)
		}
	}
}

// crashHandler writes an effect once, or kills the process.
func crashHandler(dir string, plan crashPlan, life int, store *effects) func(*message.Message) error {
	var running atomic.Int32
	together := make(chan struct{})
	return func(msg *message.Message) error {
		ctx := msg.Context()
		id := msg.Metadata[event.MetaID]
		killer := false
		for _, k := range plan.Killers {
			killer = killer || id == fmt.Sprintf("%05d", k)
		}
		if killer {
			if _, err := note(dir, "starts."+id, "x"); err != nil {
				return err
			}
		}
		if life <= 2 { // all are in flight when the killer kills
			if int(running.Add(1)) == plan.Together {
				close(together)
			}
			<-together
			if !killer {
				<-ctx.Done()
				return ctx.Err()
			}
		}
		if killer {
			kill(plan.How)
		}
		_, err := store.once(ctx, inbox.Claim{Consumer: crashConsumer, ID: id})
		return err
	}
}

// kill ends the process as the kernel does when memory is out, as a library does that gives up, and as Go does.
func kill(how string) {
	switch how {
	case "sigkill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "exit":
		os.Exit(137)
	case "panic":
		go panic("nobody recovers this")
	case "stack":
		debug.SetMaxStack(8 << 20) // not the machine's memory
		fmt.Println(overflow(0))
	}
	select {}
}

func overflow(n int) int {
	if n < 0 {
		return n
	}
	return overflow(n+1) + 1
}

// note appends text to a file and returns how long it is then.
func note(dir, name, text string) (int, error) {
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

// A message whose handling kills the process came back with every restart, for ever, and what counted deliveries
// dead-lettered the messages beside it too (fault R5).
func TestR5ProcessKillerAmongManyIsDeadLettered(t *testing.T) {
	for _, plan := range []crashPlan{
		{Messages: many, Killers: []int{many / 2}, How: "sigkill", Together: many, Ledger: "sqlite"},
		{Messages: 100, Killers: []int{30, 70}, How: "exit", Together: 100, Ledger: "file"},
		{Messages: 40, Killers: []int{7}, How: "panic", Together: 40, Ledger: "file"},
		{Messages: 40, Killers: []int{7}, How: "stack", Together: 40, Ledger: "sqlite"},
	} {
		t.Run(fmt.Sprintf("%s among %d on %s", plan.How, plan.Messages, plan.Ledger), func(t *testing.T) {
			testCrash(t, plan)
		})
	}
}

// The same on real servers.
func TestR5ProcessKillerOnKafkaAndPostgres(t *testing.T) {
	name := fmt.Sprintf("ledger_%d_%d", os.Getpid(), time.Now().UnixNano())
	plan := crashPlan{
		Messages: many, Killers: []int{many / 2}, How: "sigkill", Together: many, Ledger: "postgres",
		Kafka: testserver.Kafka(t), Postgres: testserver.Postgres(t), Topic: name, Schema: name,
	}
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), plan.Postgres)
		if err != nil {
			t.Error(err)
			return
		}
		_, err = conn.Exec(context.Background(), "DROP SCHEMA "+pgx.Identifier{name}.Sanitize()+" CASCADE")
		if err := errors.Join(err, conn.Close(context.Background())); err != nil {
			t.Error(err)
		}
	})
	testCrash(t, plan)
}

func testCrash(t *testing.T, plan crashPlan) {
	dir := t.TempDir()
	if plan.Topic == "" {
		plan.Topic = "orders"
	}
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "plan.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	lives := 0
	for ended := false; !ended; {
		lives++
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		child.Env = append(os.Environ(), crashDir+"="+dir, "GOTRACEBACK=none")
		out, err := child.CombinedOutput()
		code := child.ProcessState.ExitCode()
		switch {
		case err == nil:
			ended = true
		case lives > 4*len(plan.Killers)+1 || code == 1:
			t.Fatalf("life %d: %v\n%s", lives, err, tail(out))
		}
		t.Logf("life %d: %v", lives, err)
	}

	for _, k := range plan.Killers {
		starts, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("starts.%05d", k)))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("killer %d was started %d times", k, len(starts))
		if len(starts) > 5 {
			t.Errorf("killer %d was started %d times, want at most 5", k, len(starts))
		}
	}
	graves, err := os.ReadFile(filepath.Join(dir, "dead"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(graves), "\n"); got != len(plan.Killers) {
		t.Errorf("got %d dead letters, want %d:\n%s", got, len(plan.Killers), graves)
	}
	for _, k := range plan.Killers {
		if !strings.Contains(string(graves), fmt.Sprintf("ce:/shop %05d ledger.CrashLoopError ", k)) {
			t.Errorf("killer %d has no dead letter:\n%s", k, graves)
		}
	}
	store, err := crashEffects(dir, plan)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.close(); err != nil {
			t.Error(err)
		}
	}()
	rows, ids, err := store.count(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := plan.Messages - len(plan.Killers); rows != want || ids != want {
		t.Errorf("got %d effects of %d messages, want one of each of %d", rows, ids, want)
	}
}

func tail(out []byte) []byte { return out[max(0, len(out)-4000):] }
