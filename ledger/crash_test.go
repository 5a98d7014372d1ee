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

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/ledger/file"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
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
	Ledger   string // "sqlite", "file"
}

const (
	crashConsumer = "orders.work"
	crashTopic    = "orders"
	crashLimit    = 60 * time.Second
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
	server, err := embedded.Start(embedded.Config{Dir: filepath.Join(dir, "jetstream"), Logger: logger})
	if err != nil {
		return err
	}
	closers = append(closers, server.Close)
	broker, err := jetstream.New(jetstream.Config{Server: server, AckWait: 2 * time.Second, Logger: logger})
	if err != nil {
		return err
	}
	closers = append(closers, broker.Close)
	store, err := crashStore(dir, "effects.db")
	if err != nil {
		return err
	}
	closers = append(closers, store.Close)
	if _, err := store.DB().Exec("CREATE TABLE IF NOT EXISTS effects (id TEXT NOT NULL)"); err != nil {
		return err
	}
	cfg := ledger.Config{Instance: "the one"}
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
	return errors.Join(pub.Publish(crashTopic, msgs...), pub.Close())
}

// crashRun runs the service until everything was settled.
func crashRun(dir string, plan crashPlan, life int, broker brokers.Broker, store *sqlstore.Store, cfg ledger.Config, logger *slog.Logger) error {
	rt, err := runtime.New(runtime.Config{
		Service: "orders", Broker: broker, Logger: logger, Ledger: cfg,
		Policy: runtime.Policy{Window: 1024, Concurrency: 1024, Timeout: runtime.Off},
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), crashLimit)
	defer stop()
	work := rt.Consumer(crashConsumer, crashTopic)
	runtime.HandleMessage(work, "placed", crashHandler(dir, plan, life, store))

	var mu sync.Mutex
	dead := map[string]bool{}
	graves := rt.Consumer("orders.graves", crashTopic+poison.Suffix)
	runtime.HandleDeadLetters(graves, func(_ context.Context, r poison.Record) error {
		mu.Lock()
		defer mu.Unlock()
		if !dead[r.ID] {
			dead[r.ID] = true
			_, err := note(dir, "dead", fmt.Sprintf("%s %s %s\n", r.MessageID, r.ErrorType, r.Error))
			return err
		}
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return errors.Join(err, errors.New("not everything was settled"))
		case <-tick.C:
		}
		var n int
		if err := store.DB().QueryRowContext(ctx, "SELECT count(*) FROM effects").Scan(&n); err != nil {
			return err
		}
		graves, err := os.ReadFile(filepath.Join(dir, "dead"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if n+bytes.Count(graves, []byte("\n")) >= plan.Messages {
			stop()
			return <-ended
		}
	}
}

// crashHandler writes an effect once, or kills the process.
func crashHandler(dir string, plan crashPlan, life int, store *sqlstore.Store) func(*message.Message) error {
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
		_, err := store.Once(ctx, inbox.Claim{Consumer: crashConsumer, ID: id}, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO effects (id) VALUES (?)", id)
			return err
		})
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
		{Messages: 1024, Killers: []int{500}, How: "sigkill", Together: 1024, Ledger: "sqlite"},
		{Messages: 200, Killers: []int{30, 150}, How: "exit", Together: 200, Ledger: "file"},
		{Messages: 40, Killers: []int{7}, How: "panic", Together: 40, Ledger: "file"},
		{Messages: 40, Killers: []int{7}, How: "stack", Together: 40, Ledger: "sqlite"},
	} {
		t.Run(fmt.Sprintf("%s among %d on %s", plan.How, plan.Messages, plan.Ledger), func(t *testing.T) {
			testCrash(t, plan)
		})
	}
}

func testCrash(t *testing.T, plan crashPlan) {
	dir := t.TempDir()
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
	store, err := crashStore(dir, "effects.db")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var rows, ids int
	if err := store.DB().QueryRow("SELECT count(*), count(DISTINCT id) FROM effects").Scan(&rows, &ids); err != nil {
		t.Fatal(err)
	}
	if want := plan.Messages - len(plan.Killers); rows != want || ids != want {
		t.Errorf("got %d effects of %d messages, want one of each of %d", rows, ids, want)
	}
}

func tail(out []byte) []byte { return out[max(0, len(out)-4000):] }
