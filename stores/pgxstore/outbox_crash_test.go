package pgxstore_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// fileBroker appends each message's id to a file that several processes share: its order is the order of
// publication.
type fileBroker struct{ f *os.File }

func (b fileBroker) Publish(_ string, msgs ...*message.Message) error {
	for _, m := range msgs {
		if _, err := b.f.WriteString(m.Metadata[event.MetaPartitionKey] + " " + m.UUID + "\n"); err != nil {
			return err
		}
	}
	return nil
}

func (fileBroker) Close() error { return nil }

const (
	relaySchema = "HEADRACE_TEST_RELAY_SCHEMA"
	relayFile   = "HEADRACE_TEST_RELAY_FILE"
)

// TestRelayProcess is the process that TestO5RelaysAreKilledAndFrozen starts, kills and freezes.
func TestRelayProcess(t *testing.T) {
	name := os.Getenv(relaySchema)
	if name == "" {
		t.Skip("not a test: a process of TestO5RelaysAreKilledAndFrozen")
	}
	f, err := os.OpenFile(os.Getenv(relayFile), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), os.Getenv("HEADRACE_POSTGRES_URL"))
	if err != nil {
		t.Fatal(err)
	}
	store, err := pgxstore.New(pool, pgxstore.WithSchema(name))
	if err != nil {
		t.Fatal(err)
	}
	relay, err := outbox.NewRelay(store.Outbox(), fileBroker{f}, outbox.RelayConfig{
		Batch: 5, Page: 50, LeaseTTL: time.Second, PublishTimeout: 300 * time.Millisecond, DatabaseTimeout: 900 * time.Millisecond,
		PollMin: 2 * time.Millisecond, PollMax: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	// It ends with its parent, whatever happens.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := relay.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

// Relays die by SIGKILL at any moment, between the publish and the delete too, and freeze by SIGSTOP for
// longer than their leases, while writers go on. Every row is published, the first publications of each
// key in order, and nothing is left.
func TestO5RelaysAreKilledAndFrozen(t *testing.T) {
	store := outboxStore(t)
	var name string
	if err := store.Pool().QueryRow(t.Context(), "SELECT max(nspname) FROM pg_namespace WHERE nspname LIKE $1", fmt.Sprintf("outbox_%d_%%", os.Getpid())).Scan(&name); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "published")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^TestRelayProcess$")
		cmd.Env = append(os.Environ(), relaySchema+"="+name, relayFile+"="+file)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	kill := func(cmd *exec.Cmd) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	const keys, perKey = 16, 150
	var writers sync.WaitGroup
	for k := range keys {
		writers.Go(func() {
			key := fmt.Sprintf("k%02d", k)
			for i := range perKey {
				tx, err := store.Pool().Begin(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				msg := message.NewMessage(fmt.Sprintf("%s-%04d", key, i), []byte("x"))
				msg.Metadata[event.MetaPartitionKey] = key
				if err := outbox.Add(ctx, store, tx, fmt.Sprint("t", k%2), msg); err != nil {
					t.Error(err)
					return
				}
				if err := tx.Commit(ctx); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	written := make(chan struct{})
	go func() { writers.Wait(); close(written) }()

	relays := []*exec.Cmd{start(), start()}
	defer func() {
		for _, r := range relays {
			kill(r)
		}
	}()
	kills, freezes := 0, 0
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	for more := true; more || kills < 12; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
		select {
		case <-written:
			more = false
		default:
		}
		i := rnd.IntN(len(relays))
		if kills%4 == 3 && freezes <= kills/4 { // the frozen one comes back as a zombie
			freezes++
			frozen := relays[i]
			if err := frozen.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			relays = append(relays, start())
			thaw := time.NewTimer(1500 * time.Millisecond)
			<-thaw.C
			if err := frozen.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			continue
		}
		kill(relays[i])
		kills++
		relays[i] = start()
	}
	for {
		b, err := store.Outbox().Backlog(ctx, 10_000)
		if err != nil {
			t.Fatal(err)
		}
		if b.Rows == 0 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d rows are left", b.Rows)
		}
	}

	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	first, seen, copies := map[string][]string{}, map[string]bool{}, 0
	for s := bufio.NewScanner(f); s.Scan(); {
		key, id, ok := strings.Cut(s.Text(), " ")
		if !ok {
			t.Fatalf("line %q", s.Text())
		}
		if seen[id] {
			copies++
			continue
		}
		seen[id] = true
		first[key] = append(first[key], id)
	}
	for k := range keys {
		key := fmt.Sprintf("k%02d", k)
		if got := first[key]; len(got) != perKey || !slices.IsSorted(got) {
			t.Errorf("key %s: %d of %d published, in order %t: %q", key, len(got), perKey, slices.IsSorted(got), got)
		}
	}
	t.Logf("%d rows, %d copies, %d kills, %d freezes", len(seen), copies, kills, freezes)
}
