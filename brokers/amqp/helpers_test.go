package amqp_test

import (
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/internal/testserver"
)

func publisher(t testing.TB, b *amqp.Broker) message.Publisher {
	t.Helper()
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	return pub
}

// numbered returns messages whose ids and payloads are n numbers from first on.
func numbered(first, n int) []*message.Message {
	messages := make([]*message.Message, n)
	for i := range messages {
		text := strconv.Itoa(first + i)
		messages[i] = message.NewMessage(text, []byte(text))
	}
	return messages
}

func publish(t testing.TB, b *amqp.Broker, topic string, messages ...*message.Message) {
	t.Helper()
	if err := publisher(t, b).Publish(topic, messages...); err != nil {
		t.Fatal(err)
	}
}

func subscribe(t testing.TB, b *amqp.Broker, consumer, topic string, window int) (message.Subscriber, <-chan *message.Message) {
	t.Helper()
	sub, err := b.Subscriber(brokers.Subscription{Consumer: consumer, Topic: topic, Window: window})
	if err != nil {
		t.Fatal(err)
	}
	in, err := sub.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return sub, in
}

func next(t testing.TB, in <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m, open := <-in:
		if !open {
			t.Fatal("the channel is closed, want a message")
		}
		return m
	case <-time.After(wait):
		t.Fatalf("no message in %v", wait)
	}
	return nil
}

func take(t testing.TB, in <-chan *message.Message, n int) []*message.Message {
	t.Helper()
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = next(t, in)
	}
	return messages
}

func ack(t testing.TB, in <-chan *message.Message, n int) (payloads []string) {
	t.Helper()
	for range n {
		m := next(t, in)
		payloads = append(payloads, string(m.Payload))
		m.Ack()
	}
	return payloads
}

func texts(first, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = strconv.Itoa(first + i)
	}
	return all
}

func sorted(texts []string) []string {
	return slices.Sorted(slices.Values(texts))
}

func delivery(t testing.TB, m *message.Message) *brokers.Delivery {
	t.Helper()
	d := brokers.DeliveryOf(m.Context())
	if d == nil {
		t.Fatalf("message %s has no delivery", m.Payload)
	}
	return d
}

// eventually waits until ok, and fails with what it says otherwise.
func eventually(t testing.TB, ok func() (bool, string)) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(wait)
	for {
		done, state := ok()
		if done {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("after %v: %s", wait, state)
		}
	}
}

func quiet(t testing.TB, in <-chan *message.Message) {
	t.Helper()
	select {
	case m := <-in:
		t.Errorf("message %s came, want none", m.Payload)
	case <-time.After(200 * time.Millisecond):
	}
}

// proxy is a TCP proxy in this process whose connections can be cut.
type proxy struct {
	listener net.Listener
	target   string
	ended    sync.WaitGroup

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
}

// newProxy passes connections on to the real server until its test ends. It returns the URL by which it is reached.
func newProxy(t testing.TB) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(testserver.AMQP(t))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: u.Host, conns: map[net.Conn]bool{}}
	p.ended.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return // closed
			}
			p.ended.Go(func() { p.pass(in) })
		}
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close the proxy: %v", err)
		}
		p.cut(true)
		p.ended.Wait()
	})
	u.Host = l.Addr().String()
	return p, u.String()
}

// pass copies both ways until one side ends or the proxy is cut.
func (p *proxy) pass(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer out.Close()
	p.mu.Lock()
	if p.down {
		p.mu.Unlock()
		return
	}
	p.conns[in], p.conns[out] = true, true
	p.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // the end of either ends both
			_ = in.Close()
			_ = out.Close()
		})
	}
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, in)
	delete(p.conns, out)
}

// cut resets all connections; down: and lets no other through.
func (p *proxy) cut(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, as when a process is killed
		}
		_ = c.Close()
	}
}
