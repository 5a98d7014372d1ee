package deadletter_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/internal/testconsumer"
	"github.com/headrace-go/headrace/poison"
)

const (
	consumer  = "billing.orders"
	victimEnv = "HEADRACE_TEST_VICTIM" // makes the test binary the operator that is killed
)

// await waits until ok.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick, end := time.NewTicker(2*time.Millisecond), time.After(limit)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

func openJetStream(t *testing.T) *embedded.Broker {
	t.Helper()
	b, err := embedded.New(embedded.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0"}, jetstream.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func publishOrders(t *testing.T, b brokers.Broker, ids ...string) {
	t.Helper()
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	for _, id := range ids {
		m := message.NewMessage("u-"+id, []byte("{}"))
		m.Metadata = message.Metadata{"ce_specversion": "1.0", "ce_id": id, "ce_source": "/shop", "ce_type": "order.placed", "ce_partitionkey": "k"}
		if err := pub.Publish("orders", m); err != nil {
			t.Fatal(err)
		}
	}
}

// indexed waits until there are n letters on the topic and puts them into the store.
func indexed(t *testing.T, b brokers.Reader, s *deadletter.Store, n int) {
	t.Helper()
	topics, err := deadletter.NewTopics(b, "orders.DLT")
	if err != nil {
		t.Fatal(err)
	}
	await(t, fmt.Sprintf("%d dead letters", n), func() bool {
		read := 0
		err := topics.Each(t.Context(), func(r poison.Record) error {
			read++
			_, err := s.Add(t.Context(), r)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return read == n
	})
}

// The inbox decides: what had failed runs once, what had succeeded after all does not run again, however often it is redriven.
func TestRedrivenMessagesTakeEffectOnce(t *testing.T) {
	b, store := openJetStream(t), openSQLite(t, "")
	letters := newStore(t, store.DeadLetters())
	svc := testconsumer.Start(t, b, store, consumer, "orders", "effects")
	svc.Failing(func(id string) error { return fmt.Errorf("order %s: %w", id, errRefused) })
	publishOrders(t, b, "a", "b", "c")
	indexed(t, b, letters, 3)
	if got := svc.Effects(t); len(got) != 0 {
		t.Fatalf("effects %v before the fix", got)
	}
	svc.Failing(nil)
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	everything := deadletter.Filter{States: []deadletter.State{deadletter.New, deadletter.Redriven}}
	for run := range 3 { // the second and third time they had succeeded
		report, err := redriver(t, letters, pub, func(c *deadletter.RedriveConfig) { c.Batch = fmt.Sprint("b-", run) }).Run(t.Context(), everything)
		if err != nil || report.Redriven != 3 {
			t.Fatalf("run %d: %+v, %v", run, report, err)
		}
	}
	publishOrders(t, b, "last") // behind nothing that is left: the redrive topic is read meanwhile
	await(t, "the effects", func() bool {
		info, err := b.Ends(t.Context(), poison.RedriveTopic(consumer))
		return err == nil && info[-1] == 10 && len(svc.Effects(t)) == 4
	})
	for id, n := range svc.Effects(t) {
		if n != 1 {
			t.Errorf("order %s took effect %d times", id, n)
		}
	}
	if n := svc.Runs("a"); n != 2 {
		t.Errorf("order a ran %d times, want twice: it failed, and was redriven", n)
	}
}

// An operator's process was killed after its messages were published and before they were marked.
func TestKillBetweenPublishAndMark(t *testing.T) {
	b := openJetStream(t)
	path := filepath.Join(t.TempDir(), "x.db")
	store := openSQLite(t, path)
	letters := newStore(t, store.DeadLetters())
	svc := testconsumer.Start(t, b, store, consumer, "orders", "effects")
	svc.Failing(func(string) error { return errRefused })
	publishOrders(t, b, "a", "b")
	indexed(t, b, letters, 2)
	svc.Failing(nil)

	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"="+path, "VICTIM_BROKER="+b.Server().URL())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "published") {
		t.Fatalf("the victim says %q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if got := states(t, letters)[deadletter.Redriving]; got != 2 {
		t.Fatalf("%d letters are claimed by the dead operator, want 2: %v", got, states(t, letters))
	}

	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	await(t, "the dead operator's claims to end", func() bool {
		if _, err := redriver(t, letters, pub).Run(t.Context(), deadletter.Filter{}); err != nil {
			t.Fatal(err)
		}
		return states(t, letters)[deadletter.Redriven] == 2
	})
	await(t, "both copies to be read", func() bool {
		ends, err := b.Ends(t.Context(), poison.RedriveTopic(consumer))
		return err == nil && ends[-1] == 5 && len(svc.Effects(t)) == 2
	})
	publishOrders(t, b, "last")
	await(t, "the last one", func() bool { return len(svc.Effects(t)) == 3 })
	for id, n := range svc.Effects(t) {
		if n != 1 {
			t.Errorf("order %s took effect %d times: %v", id, n, svc.Effects(t))
		}
	}
}

// victim redrives, and tells when it has published. It never marks.
func victim() {
	store, err := openVictim()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ended:", store)
}

func openVictim() (string, error) {
	ctx := context.Background()
	b, err := jetstream.New(jetstream.Config{URL: os.Getenv("VICTIM_BROKER")})
	if err != nil {
		return "", err
	}
	pub, err := b.Publisher()
	if err != nil {
		return "", err
	}
	store, err := openPath(os.Getenv(victimEnv))
	if err != nil {
		return "", err
	}
	letters, err := deadletter.NewStore(stuck{store.DeadLetters(), os.Stdout}, deadletter.Protection{})
	if err != nil {
		return "", err
	}
	r, err := deadletter.NewRedriver(deadletter.RedriveConfig{Source: letters, Publisher: pub, Actor: "victim", Reason: "test", ClaimTTL: time.Second})
	if err != nil {
		return "", err
	}
	report, err := r.Run(ctx, deadletter.Filter{})
	return fmt.Sprintf("%+v", report), err
}

// stuck is a table that does not come to mark anything.
type stuck struct {
	deadletter.Table
	out io.Writer
}

func (s stuck) Settle(_ context.Context, _ deadletter.Claim, c deadletter.Change) ([]string, error) {
	fmt.Fprintln(s.out, "published", c.IDs)
	select {}
}
