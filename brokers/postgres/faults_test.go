package postgres_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
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
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/internal/testserver"
	"github.com/headrace-go/headrace/outbox"
)

// sameBucket returns a key of the same bucket as key.
func sameBucket(key string) string {
	for i := 0; ; i++ {
		if k := strconv.Itoa(i); outbox.BucketOf(k) == outbox.BucketOf(key) {
			return k
		}
	}
}

// O1: a reader whose cursor was the highest id lost what committed late.
func TestO1LateCommitArrivesInItsKeysOrder(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	other := sameBucket("late")
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 8)
	adaptertest.Publish(t, b, "orders", keyed("0", other))
	ack(t, in, 1)
	tx, err := e.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if err := b.PublisherTx(t.Context(), tx).Publish("orders", keyed("late", "late")); err != nil {
		t.Fatal(err)
	}
	// Others with higher ids are read, acked and deleted for so long that reading could begin above the late one.
	began := time.Now()
	for i := 1; time.Since(began) < 1500*time.Millisecond; i++ {
		adaptertest.Publish(t, b, "orders", keyed(strconv.Itoa(i), other))
		wantIDs(t, "meanwhile the consumer", ack(t, in, 1), strconv.Itoa(i))
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	adaptertest.Publish(t, b, "orders", keyed("after", "late"))
	wantIDs(t, "the consumer", ack(t, in, 2), "late", "after")
}

// O9: the relay of others stalls behind the oldest transaction of the cluster.
func TestO9ForeignTransactionHoldsNothing(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	e.exec("CREATE TABLE " + pgx.Identifier{e.schema, "foreign_table"}.Sanitize() + " (n int)")
	tx, err := e.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "INSERT INTO "+pgx.Identifier{e.schema, "foreign_table"}.Sanitize()+" VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 8)
	for i := range 50 {
		id := strconv.Itoa(i)
		publishIDs(t, b, "orders", id)
		wantIDs(t, "beside a foreign transaction the consumer", ack(t, in, 1), id)
	}
	e.eventually("acked messages are deleted", func() bool { return e.rows() == 0 })
}

// O7: a process loses its bucket and does not know it yet. Its ack must not delete what another one is delivering.
func TestO7AckWithALostLeaseDeletesNothing(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 8)
	publishIDs(t, b, "orders", "1", "2")
	first, second := adaptertest.Next(t, in), adaptertest.Next(t, in)
	e.exec("UPDATE " + e.table("lease") + " SET epoch = epoch + 1, owner = 'another'")
	e.exec("INSERT INTO " + e.table("member") + " SELECT id, 'another', now() + interval '1 minute' FROM " + e.table("group"))
	first.Ack()
	select {
	case <-second.Context().Done():
	case <-time.After(limit):
		t.Error("the context of a delivery whose lease is lost has not ended")
	}
	if got := e.rows(); got != 2 {
		t.Errorf("%d of 2 messages are left: the zombie has deleted what is another's", got)
	}
	e.exec("DELETE FROM " + e.table("member") + " WHERE owner = 'another'")
	wantIDs(t, "when the other one is gone, the consumer", ack(t, in, 2), "1", "2")
	e.eventually("no row is left", func() bool { return e.rows() == 0 })
}

// Deletes are slow and succeed, and acks come all the time: leases were not kept meanwhile, so after each LeaseTTL the
// window came again.
func TestSteadyAcksKeepTheBuckets(t *testing.T) {
	const ttl = time.Second
	e := newEnv(t)
	config := e.config()
	config.LeaseTTL = ttl
	b := open(t, config)
	if err := b.Register(t.Context(), "orders", "c"); err != nil {
		t.Fatal(err)
	}
	e.exec("INSERT INTO " + e.table("message") + " (group_id, bucket, uuid) SELECT g.id, n % 64, n FROM " + e.table("group") + " g, generate_series(1, 5000) n")
	slow := pgx.Identifier{e.schema, "slow"}.Sanitize()
	e.exec("CREATE FUNCTION " + slow + "() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.03); RETURN NULL; END'")
	e.exec("CREATE TRIGGER slow BEFORE DELETE ON " + e.table("message") + " FOR EACH STATEMENT EXECUTE FUNCTION " + slow + "()")
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 64)
	held := adaptertest.Next(t, in)
	seen := map[string]bool{held.UUID: true}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(3 * ttl); end != nil; {
		select {
		case <-tick.C:
			m := adaptertest.Next(t, in)
			if seen[m.UUID] {
				t.Fatalf("message %s came twice", m.UUID)
			}
			seen[m.UUID] = true
			m.Ack()
		case <-held.Context().Done():
			t.Fatalf("the context of a delivery ended after %d messages: its lease was not kept", len(seen))
		case <-end:
			end = nil
		}
	}
}

// A failover sends the sequence back, and the new server gives ids to other rows that rows in memory have. An ack deleted such
// a row, which was hidden until then.
func TestIDsThatAreUsedAgainHideNothing(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	if err := b.Register(t.Context(), "orders", "c"); err != nil {
		t.Fatal(err)
	}
	// Something is not committed yet, so all ids are looked at again.
	tx, err := e.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if err := b.PublisherTx(t.Context(), tx).Publish("orders", keyed("never", "key")); err != nil {
		t.Fatal(err)
	}
	publishIDs(t, b, "orders", "1", "2")
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 1)
	held := adaptertest.Next(t, in) // and the other one waits
	e.exec("WITH old AS (DELETE FROM " + e.table("message") + " RETURNING *) INSERT INTO " + e.table("message") +
		" (group_id, bucket, id, uuid, created_at) SELECT group_id, bucket, id, 'new ' || uuid, created_at + interval '1 microsecond' FROM old")
	held.Ack()
	got := map[string]bool{}
	for !got["new 1"] || !got["new 2"] {
		for _, id := range ack(t, in, 1) {
			got[id] = true
		}
	}
	e.eventually("the new rows are deleted when they are acked", func() bool { return e.rows() == 0 })
}

// TestChild is the other process of tests, see child.
func TestChild(t *testing.T) {
	url := os.Getenv("HEADRACE_TEST_CHILD")
	if url == "" {
		t.Skip("it is the other process of tests")
	}
	schema := os.Getenv("HEADRACE_TEST_SCHEMA")
	config := fast(postgres.Config{Pool: newPool(t, url), Schema: schema})
	config.LeaseTTL = short
	b := open(t, config)
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "c", Topic: "orders", Window: 2})
	if err != nil {
		t.Fatal(err)
	}
	in, err := sub.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	m := adaptertest.Next(t, in)
	fmt.Printf("got %s\n", m.UUID)
	<-m.Context().Done() // it hangs until it is told
	m.Ack()
	fmt.Printf("fenced %s\n", m.UUID)
	_, _ = io.Copy(io.Discard, os.Stdin) // it lives until it is told
}

// child starts this test's binary as another process that consumes one message and hangs. said waits for a line.
func child(t *testing.T, e *env) (cmd *exec.Cmd, said func(want string)) {
	cmd = exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v")
	cmd.Env = append(os.Environ(), "HEADRACE_TEST_CHILD="+e.pool.Config().ConnString(), "HEADRACE_TEST_SCHEMA="+e.schema)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Process.Signal(syscall.SIGCONT)
		for range lines {
		}
		_ = cmd.Wait() // it may have been killed
	})
	return cmd, func(want string) {
		t.Helper()
		after := time.After(limit)
		for {
			select {
			case line, open := <-lines:
				if !open {
					t.Fatalf("the other process has ended before it said %q", want)
				}
				if line == want {
					return
				}
			case <-after:
				t.Fatalf("the other process has not said %q in %v", want, limit)
			}
		}
	}
}

func TestKilledProcessIsReplaced(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	publishIDs(t, b, "orders", "1", "2", "3")
	cmd, said := child(t, e)
	said("got 1")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 4)
	wantIDs(t, "the next process", ack(t, in, 3), "1", "2", "3")
}

// A process is stopped for longer than its lease, and goes on: its delivery is fenced, and its ack is void.
func TestO7StoppedProcessIsReplacedAndFenced(t *testing.T) {
	e := newEnv(t)
	b := open(t, e.config())
	publishIDs(t, b, "orders", "1", "2", "3")
	cmd, said := child(t, e)
	said("got 1")
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 4)
	first := adaptertest.Next(t, in)
	wantIDs(t, "while the first message is held, the next process", ack(t, in, 2), "2", "3")
	e.eventually("the others are deleted", func() bool { return e.rows() == 1 })
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	said("fenced 1")
	if err := first.Context().Err(); err != nil {
		t.Errorf("the zombie has taken the bucket back: %v", err)
	}
	if got := e.rows(); got != 1 {
		t.Errorf("%d messages are left, want 1: the zombie has deleted what is held by another", got)
	}
	first.Ack()
	e.eventually("the first is deleted", func() bool { return e.rows() == 0 })
}

// network is what the connections of a pool go over. It can be cut.
type network struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func (n *network) join(c *pgxpool.Config) {
	dial := c.ConnConfig.DialFunc
	c.ConnConfig.DialFunc = func(ctx context.Context, kind, address string) (net.Conn, error) {
		conn, err := dial(ctx, kind, address)
		n.mu.Lock()
		defer n.mu.Unlock()
		if err == nil && n.cut {
			conn.Close()
			err = errors.New("the network is cut")
		}
		n.conns = append(n.conns, conn)
		return conn, err
	}
}

func (n *network) set(cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
	if cut {
		for _, c := range n.conns {
			c.Close()
		}
		n.conns = nil
	}
}

// O7: a process cannot reach the database any more, so nobody can tell it that its lease is over.
func TestO7UnreachableDatabaseFencesByTheClock(t *testing.T) {
	e := newEnv(t)
	var n network
	config := e.config()
	config.Pool = newPool(t, testserver.Postgres(t), n.join)
	config.CloseTimeout = time.Second
	config.LeaseTTL = short
	b := open(t, config)
	publishIDs(t, b, "orders", "1", "2")
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 1)
	m := adaptertest.Next(t, in)
	n.set(true)
	select {
	case <-m.Context().Done():
	case <-time.After(limit):
		t.Errorf("the delivery's context has not ended %v after the database was gone, with leases of %v", limit, config.LeaseTTL)
	}
	other := open(t, e.config())
	_, another := adaptertest.Subscribe(t, other, "c", "orders", 1)
	wantIDs(t, "another process", ack(t, another, 1), "1")
	n.set(false)
	m.Ack() // it changes nothing
	wantIDs(t, "another process", ack(t, another, 1), "2")
	e.eventually("no row is left", func() bool { return e.rows() == 0 })
	e.eventually("the first process has its share again", func() bool {
		return e.number("SELECT count(DISTINCT l.owner) FROM "+e.table("lease")+" l JOIN "+e.table("member")+" m USING (group_id, owner)") == 2
	})
}

// books checks what consumers got: of each key all numbers, and each for the first time in order.
type books struct {
	mu   sync.Mutex
	last map[string]int
	bad  []string
	more int // deliveries beyond the first
}

func newBooks() *books { return &books{last: make(map[string]int)} }

func (k *books) enter(m *message.Message) {
	key, number, _ := strings.Cut(string(m.Payload), "/")
	n, err := strconv.Atoi(number)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch last := k.last[key]; {
	case err != nil:
		k.bad = append(k.bad, string(m.Payload))
	case n == last+1:
		k.last[key] = n
	case n > last:
		k.bad = append(k.bad, fmt.Sprintf("%s after %d", m.Payload, last))
	default:
		k.more++
	}
}

func (k *books) sum() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := 0
	for _, last := range k.last {
		n += last
	}
	return n
}

func (k *books) check(tb testing.TB, keys, each int) {
	tb.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.bad) > 0 {
		tb.Errorf("%d messages came before one of their key that was published earlier: %q", len(k.bad), k.bad[:min(len(k.bad), 5)])
	}
	for i := range keys {
		if got := k.last[itoa(i)]; got != each {
			tb.Errorf("key %d: %d of %d messages arrived", i, got, each)
		}
	}
	tb.Logf("%d messages, %d of them again", keys*each, k.more)
}

// produce publishes each messages of each of keys, by workers that own keys, in order; what fails is repeated.
func produce(tb testing.TB, b *postgres.Broker, keys, each int) (wait func()) {
	var wg sync.WaitGroup
	for w := range 4 {
		pub, err := b.Publisher()
		if err != nil {
			tb.Fatal(err)
		}
		wg.Go(func() {
			for n := 1; n <= each; n++ {
				for k := w; k < keys; k += 4 {
					m := message.NewMessage(fmt.Sprintf("%d/%d", k, n), []byte(fmt.Sprintf("%d/%d", k, n)))
					m.Metadata["ce_partitionkey"] = itoa(k)
					for pub.Publish("orders", m) != nil {
						select {
						case <-tb.Context().Done():
							return
						case <-time.After(20 * time.Millisecond):
						}
					}
				}
			}
		})
	}
	return wg.Wait
}

// consume handles messages as the runtime does: of one key one after the other, and no longer when its context has ended.
func consume(in <-chan *message.Message, k *books) {
	for m := range in {
		if m.Context().Err() == nil {
			k.enter(m)
			m.Ack()
		}
	}
}

// O3, O7: members come and go all the time; each key stays in order.
func TestO3OrderHoldsWhileMembersComeAndGo(t *testing.T) {
	const keys, each = 40, 30
	e := newEnv(t)
	config := e.config()
	first, second := open(t, config), open(t, config)
	k := newBooks()
	wait := produce(t, first, keys, each)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		b := []*postgres.Broker{first, second}[i%2]
		wg.Go(func() {
			for {
				sub, err := b.Subscriber(brokers.Subscription{Consumer: "c", Topic: "orders", Window: 1 + rand.IntN(20)})
				if err != nil {
					t.Error(err)
					return
				}
				in, err := sub.Subscribe(t.Context(), "orders")
				if err != nil {
					t.Error(err)
					return
				}
				var end <-chan time.Time
				if i > 0 { // one stays
					end = time.After(time.Duration(50+rand.IntN(400)) * time.Millisecond)
				}
				done := make(chan struct{})
				go func() { consume(in, k); close(done) }()
				select {
				case <-stop:
				case <-end:
				}
				sub.Close()
				<-done
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	wait()
	e.eventually("all messages arrived", func() bool { return k.sum() == keys*each })
	close(stop)
	wg.Wait()
	k.check(t, keys, each)
}

// A server of its own is stopped without a shutdown, twice, while messages are published and consumed.
func TestServerRestartUnderLoad(t *testing.T) {
	const keys, each = 20, 60
	server := ownServer(t)
	server.start()
	pool := newPool(t, server.url())
	e := &env{t, pool, newSchema(t, pool)}
	config := e.config()
	b := open(t, config)
	k := newBooks()
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 16)
	var consumed sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	consumed.Go(func() {
		for {
			select {
			case m := <-in:
				k.enter(m)
				m.Ack()
			case <-ctx.Done():
				return
			}
		}
	})
	defer consumed.Wait()
	defer cancel()
	wait := produce(t, b, keys, each)
	for part := 1; part <= 2; part++ {
		e.eventually("some messages arrived", func() bool { return k.sum() >= part*keys*each/4 })
		server.stopImmediately()
		server.start()
	}
	wait()
	e.eventually("all messages arrived", func() bool { return k.sum() == keys*each })
	e.eventually("all are deleted", func() bool { return e.rows() == 0 })
	k.check(t, keys, each)
}

// Connections are killed all the time.
func TestKilledConnectionsLoseNothing(t *testing.T) {
	const keys, each = 20, 40
	e := newEnv(t)
	config := e.config()
	b := open(t, config)
	k := newBooks()
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 16)
	go consume(in, k) // ends with the broker
	wait := produce(t, b, keys, each)
	killer, err := pgx.Connect(t.Context(), e.pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = killer.Close(context.Background()) }() // nothing is left to do with it
	var killed atomic.Int64
	e.eventually("all messages arrived", func() bool {
		if killed.Load() < 40 {
			var n int64
			err := killer.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM
				(SELECT pid FROM pg_stat_activity WHERE query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) p`, e.schema).Scan(&n)
			if err != nil {
				t.Fatal(err)
			}
			killed.Add(n)
		}
		return k.sum() == keys*each
	})
	wait()
	t.Logf("%d connections were killed", killed.Load())
	k.check(t, keys, each)
}

// server is a Postgres of the test's own.
type server struct {
	tb  testing.TB
	dir string
}

func ownServer(tb testing.TB) *server {
	tb.Helper()
	// The check is that of all real servers: a missing one skips, or fails in CI.
	newPool(tb, testserver.Postgres(tb)).Close()
	dir, err := os.MkdirTemp("", "headrace-own-") // the server's user must be able to see it
	if err != nil {
		tb.Fatal(err)
	}
	s := &server{tb, dir}
	tb.Cleanup(func() { s.command("clean") })
	return s
}

func (s *server) command(args ...string) string {
	s.tb.Helper()
	cmd := exec.Command("../../integration/servers", append(args, "postgres")...)
	if args[0] == "clean" {
		cmd = exec.Command("../../integration/servers", "clean")
	}
	cmd.Env = append(os.Environ(), "HEADRACE_SERVERS_DIR="+s.dir)
	out, err := cmd.Output()
	if err != nil {
		s.tb.Fatalf("servers %v: %v", args, err)
	}
	return string(out)
}

func (s *server) start() { s.tb.Helper(); s.command("start") }

func (s *server) url() string {
	s.tb.Helper()
	_, rest, _ := strings.Cut(s.command("env"), "'")
	url, _, _ := strings.Cut(rest, "'")
	return url
}

// stopImmediately is pg_ctl stop -m immediate: no shutdown, and the next start recovers.
func (s *server) stopImmediately() {
	s.tb.Helper()
	file := s.dir + "/postgres/data/postmaster.pid"
	text, err := os.ReadFile(file)
	if err != nil {
		s.tb.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		s.tb.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
		s.tb.Fatal(err)
	}
	deadline, tick := time.After(limit), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for syscall.Kill(pid, 0) == nil {
		select {
		case <-tick.C:
		case <-deadline:
			s.tb.Fatalf("process %d has not ended in %v", pid, limit)
		}
	}
}
