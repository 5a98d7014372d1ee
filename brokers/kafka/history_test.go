package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/ordering"
)

// history is what handlers did, in the order in which they did it.
type history struct {
	mu      sync.Mutex
	effects []effect
	seen    map[effect]struct{} // without the process
	running map[string]int      // by process and key
	faults  []string
}

type effect struct {
	key     string
	seq     int
	process int
}

func newHistory() *history {
	return &history{running: make(map[string]int), seen: make(map[effect]struct{})}
}

func (h *history) start(process int, key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lane := fmt.Sprintf("process %d key %s", process, key)
	h.running[lane]++
	if h.running[lane] > 1 {
		h.faults = append(h.faults, lane+" runs twice at once")
	}
}

func (h *history) end(process int, key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running[fmt.Sprintf("process %d key %s", process, key)]--
}

func (h *history) effect(e effect) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.effects = append(h.effects, e)
	h.seen[effect{e.key, e.seq, 0}] = struct{}{}
}

func (h *history) distinct() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.seen)
}

// check fails if something was lost (each key has each), a first effect came before one of its key before it, a key ran twice
// at once in a process, or there were more than duplicates second effects.
func (h *history) check(t *testing.T, keys, each, duplicates int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	next := make(map[string]int)
	again := 0
	for i, e := range h.effects {
		switch n := next[e.key]; {
		case e.seq == n:
			next[e.key]++
		case e.seq > n:
			t.Errorf("effect %d is message %d of key %s by process %d; message %d had none yet: order is lost", i, e.seq, e.key, e.process, n)
			next[e.key] = e.seq + 1
		default:
			again++
		}
	}
	for k := range keys {
		if got := next[strconv.Itoa(k)]; got != each {
			t.Errorf("key %d: %d messages had an effect, want %d", k, got, each)
		}
	}
	if again > duplicates {
		t.Errorf("%d messages had a second effect, want at most %d", again, duplicates)
	}
	for _, f := range h.faults {
		t.Error(f)
	}
}

// process is a consumer as the runtime makes it: the intake on the broker's subscriber, and a goroutine for each message.
type process struct {
	number int
	broker *kafka.Broker
	intake *ordering.Intake
	done   chan struct{}
	net    *network
}

// handler handles one message. It stops when ctx ends.
type handler func(ctx context.Context, process int, key string, seq int) error

func startProcess(t *testing.T, number int, config kafka.Config, group, topic string, window int, handle handler) *process {
	t.Helper()
	p := &process{number: number, done: make(chan struct{}), net: newNetwork(t)}
	config.Options = append(slices.Clip(config.Options), kgo.Dialer(p.net.dial))
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	var err error
	if p.broker, err = kafka.New(config); err != nil {
		t.Fatal(err)
	}
	if p.intake, err = ordering.New(ordering.Config{Consumer: group, Window: window, Concurrency: window, CancelGrace: 15 * time.Second}); err != nil {
		t.Fatal(err)
	}
	sub, err := p.broker.Subscriber(brokers.Subscription{Consumer: group, Topic: topic, Window: window})
	if err != nil {
		t.Fatal(err)
	}
	decorated, err := p.intake.Decorate(sub)
	if err != nil {
		t.Fatal(err)
	}
	in, err := decorated.Subscribe(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	run := p.intake.Middleware(func(m *message.Message) ([]*message.Message, error) {
		seq, err := strconv.Atoi(string(m.Payload))
		if err != nil {
			t.Errorf("payload %q: %v", m.Payload, err)
		}
		return nil, handle(m.Context(), number, string(brokers.DeliveryOf(m.Context()).Key), seq)
	})
	go func() {
		defer close(p.done)
		var wg sync.WaitGroup
		for m := range in {
			wg.Go(func() { _, _ = run(m) }) // the intake settles
		}
		wg.Wait()
	}()
	return p
}

// stop ends the process as a deploy does.
func (p *process) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := p.intake.Drain(ctx); err != nil {
		t.Errorf("process %d: Drain: %v", p.number, err)
	}
	<-p.done
	if err := p.broker.Close(); err != nil {
		t.Errorf("process %d: Close: %v", p.number, err)
	}
}

// kill cuts the process off from the cluster for good, as a crash does, and then ends it.
func (p *process) kill(t *testing.T) {
	t.Helper()
	p.net.cut()
	p.stop(t)
}

// network is a process's connections. Once it is cut the process reads and writes nothing, but the cluster sees no end of them until the
// test's: kfake starts no session for a member whose connection has ended while it joins, and such a member would keep its
// partitions for ever.
type network struct {
	mu    sync.Mutex
	isCut bool
	conns map[*conn]struct{}
}

func newNetwork(t *testing.T) *network {
	n := &network{conns: map[*conn]struct{}{}}
	t.Cleanup(func() {
		for c := range n.conns {
			_ = c.Conn.Close()
		}
	})
	return n
}

var errCut = errors.New("the network is cut")

func (n *network) dial(ctx context.Context, network, host string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isCut {
		return nil, errCut
	}
	c, err := new(net.Dialer).DialContext(ctx, network, host)
	if err != nil {
		return nil, err
	}
	own := &conn{c, n}
	n.conns[own] = struct{}{}
	return own, nil
}

func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isCut = true
	for c := range n.conns {
		_ = c.Conn.SetDeadline(time.Unix(1, 0)) // what waits in it ends
	}
}

type conn struct {
	net.Conn
	network *network
}

// SetReadDeadline and SetWriteDeadline, which the client calls for each request, do not bring back what is cut.
func (c *conn) SetReadDeadline(t time.Time) error  { return c.set(c.Conn.SetReadDeadline, t) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.set(c.Conn.SetWriteDeadline, t) }
func (c *conn) SetDeadline(t time.Time) error      { return c.set(c.Conn.SetDeadline, t) }

func (c *conn) set(deadline func(time.Time) error, t time.Time) error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	if c.network.isCut {
		return errCut
	}
	return deadline(t)
}

func (c *conn) Close() error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	if c.network.isCut {
		return nil
	}
	delete(c.network.conns, c)
	return c.Conn.Close()
}

// publishKeys publishes each messages of each key, numbered, interleaved, and returns the topic.
func publishKeys(t *testing.T, seeds []string, topic string, partitions int32, keys, each int) {
	t.Helper()
	makeTopic(t, seeds, topic, partitions)
	cl := client(t, seeds)
	records := make([]*kgo.Record, 0, keys*each)
	for seq := range each {
		for k := range keys {
			records = append(records, &kgo.Record{Topic: topic, Key: []byte(strconv.Itoa(k)), Value: []byte(strconv.Itoa(seq))})
		}
	}
	if err := cl.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	cl.Close()
}

func makeTopic(t testing.TB, seeds []string, topic string, partitions int32) {
	t.Helper()
	cl := client(t, seeds)
	defer cl.Close()
	if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), partitions, -1, nil, topic); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until ok, or fails.
func eventually(t testing.TB, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(limit)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not in %v: %s", limit, what)
		}
	}
}

// offsetOf returns the committed offset of a partition, or -1, and the metadata.
func offsetOf(t testing.TB, seeds []string, group, topic string, partition int32) (int64, string) {
	t.Helper()
	cl := client(t, seeds)
	defer cl.Close()
	all, err := kadm.NewClient(cl).FetchOffsets(context.Background(), group)
	if err != nil {
		return -1, ""
	}
	o, ok := all.Lookup(topic, partition)
	if !ok {
		return -1, ""
	}
	return o.At, o.Metadata
}

// wait sleeps in a handler.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func jitter(most time.Duration) time.Duration { return time.Duration(rand.Int64N(int64(most) + 1)) }
