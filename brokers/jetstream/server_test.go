package jetstream_test

import (
	"crypto/rand"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/internal/testserver"
)

// onServers runs test on the server in this process, and on the one of integration/servers, which is another version.
func onServers(t *testing.T, test func(t *testing.T, b natsBroker, open func(jetstream.Config) natsBroker)) {
	t.Run("embedded", func(t *testing.T) {
		first := newBroker(t, jetstream.Config{})
		test(t, first, func(c jetstream.Config) natsBroker {
			c.Server = first.Server()
			return openBroker(t, c)
		})
	})
	t.Run("server", func(t *testing.T) {
		open := func(c jetstream.Config) natsBroker {
			c.URL = testserver.NATS(t)
			return openBroker(t, c)
		}
		test(t, open(jetstream.Config{}), open)
	})
}

type natsBroker interface {
	brokers.Broker
	brokers.Registrar
	Conn() *nats.Conn
}

// openBroker returns a broker that ends with the test.
func openBroker(tb testing.TB, c jetstream.Config) natsBroker {
	tb.Helper()
	if c.Logger == nil {
		c.Logger = logTo(tb)
	}
	b, err := jetstream.New(c)
	return adaptertest.Opened(tb, b, err)
}

func stored(t *testing.T, b natsBroker, topic string) uint64 {
	t.Helper()
	js, err := natsjs.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), strings.ReplaceAll(topic, ".", "_"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Msgs
}

// A stream with limits keeps what was acked; a work queue and one with interest let go of it, and of nothing else: acks come out of
// order here, and one delivery is nacked first.
func TestRetentions(t *testing.T) {
	for _, tt := range []struct {
		retention natsjs.RetentionPolicy
		consumers []string
		left      uint64
	}{
		{natsjs.LimitsPolicy, []string{"a", "b"}, 20},
		{natsjs.InterestPolicy, []string{"a", "b"}, 0},
		{natsjs.WorkQueuePolicy, []string{"a"}, 0},
	} {
		t.Run(tt.retention.String(), func(t *testing.T) {
			onServers(t, func(t *testing.T, _ natsBroker, open func(jetstream.Config) natsBroker) {
				b := open(jetstream.Config{
					NackDelay: time.Millisecond, DoubleAck: true,
					Declare: func(_ string, s *natsjs.StreamConfig) { s.Retention = tt.retention },
				})
				topic := "retention." + rand.Text()
				if err := b.Register(t.Context(), topic, tt.consumers...); err != nil {
					t.Fatal(err)
				}
				adaptertest.Publish(t, b, topic, adaptertest.Numbered("key", 0, 20)...)
				if n := stored(t, b, topic); n != 20 {
					t.Fatalf("%d messages are stored before any was handled, want 20", n)
				}
				for _, c := range tt.consumers {
					sub, in := adaptertest.Subscribe(t, b, c, topic, 20)
					ackBackwards(t, in, 20)
					if err := sub.Close(); err != nil {
						t.Fatal(err)
					}
				}
				if n := stored(t, b, topic); n != tt.left {
					t.Errorf("%d messages are stored after all were acked, want %d", n, tt.left)
				}
			})
		})
	}
}

// ackBackwards takes n messages, nacks the first, and acks all from the last to the first.
func ackBackwards(t *testing.T, in <-chan *message.Message, n int) {
	t.Helper()
	adaptertest.Next(t, in).Nack()
	seen, held := make(map[string]bool), []*message.Message(nil)
	for len(held) < n {
		m := adaptertest.Next(t, in)
		if seen[string(m.Payload)] {
			t.Fatalf("message %s came twice un-acked", m.Payload)
		}
		seen[string(m.Payload)] = true
		held = append(held, m)
	}
	for i := range held {
		held[n-1-i].Ack()
	}
}

// An interest stream forgets at once what no consumer is known for. A consumer that subscribes a moment after another would miss what
// came between; so all are made known before the first message.
func TestRegisteredConsumersMissNothingOfAnInterestStream(t *testing.T) {
	onServers(t, func(t *testing.T, _ natsBroker, open func(jetstream.Config) natsBroker) {
		b := open(jetstream.Config{Declare: func(_ string, s *natsjs.StreamConfig) { s.Retention = natsjs.InterestPolicy }})
		topic := "interest." + rand.Text()
		for range 2 { // the second changes nothing
			if err := b.Register(t.Context(), topic, "early", "late"); err != nil {
				t.Fatal(err)
			}
		}
		adaptertest.Publish(t, b, topic, adaptertest.Numbered("key", 0, 5)...)
		for _, consumer := range []string{"early", "late"} {
			_, in := adaptertest.Subscribe(t, b, consumer, topic, 7)
			for i := range 5 {
				m := adaptertest.Next(t, in)
				if want := strconv.Itoa(i); string(m.Payload) != want {
					t.Errorf("consumer %s got message %s, want %s", consumer, m.Payload, want)
				}
				m.Ack()
			}
		}
	})
}

// A work queue has one consumer. Another one is told so, by the name of the stream and its retention.
func TestSecondConsumerOfAWorkQueueIsRefused(t *testing.T) {
	onServers(t, func(t *testing.T, _ natsBroker, open func(jetstream.Config) natsBroker) {
		b := open(jetstream.Config{Declare: func(_ string, s *natsjs.StreamConfig) { s.Retention = natsjs.WorkQueuePolicy }})
		topic := "queue." + rand.Text()
		if err := b.Register(t.Context(), topic, "first", "second"); err == nil || !strings.Contains(err.Error(), "work queue") {
			t.Errorf("Register of two consumers: error is %v, want one that says that it is a work queue", err)
		}
		adaptertest.Subscribe(t, b, "first", topic, 1)
		sub, err := b.Subscriber(brokers.Subscription{Consumer: "second", Topic: topic})
		if err != nil {
			t.Fatal(err)
		}
		_, err = sub.Subscribe(t.Context(), topic)
		if err == nil || !strings.Contains(err.Error(), "work queue") || !strings.Contains(err.Error(), `"second"`) {
			t.Errorf("Subscribe of a second consumer: error is %v, want one that names it and says that it is a work queue", err)
		}
	})
}

func TestMsgIDDropsTheSecondOfOneID(t *testing.T) {
	onServers(t, func(t *testing.T, _ natsBroker, open func(jetstream.Config) natsBroker) {
		b := open(jetstream.Config{MsgID: func(_ string, m *message.Message) string { return m.UUID }})
		topic := "dedup." + rand.Text()
		adaptertest.Publish(t, b, topic, adaptertest.Numbered("key", 0, 3)...)
		adaptertest.Publish(t, b, topic, adaptertest.Numbered("key", 0, 4)...) // as a relay does that crashed before it knew of the first
		if n := stored(t, b, topic); n != 4 {
			t.Errorf("%d messages are stored, want 4: ids 0 to 2 were published twice", n)
		}
	})
}

// The server is killed, not stopped, again and again while messages are published and handled. What was confirmed arrives, what
// arrives was published.
func TestKilledServerLosesNothing(t *testing.T) {
	server := newServer(t)
	server.start(t)
	b := openBroker(t, jetstream.Config{
		URL: "nats://" + server.address, AckWait: time.Second, PublishTimeout: 2 * time.Second,
		Options: []nats.Option{nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0)},
	})
	_, in := adaptertest.Subscribe(t, b, "c", "killed", 16)
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	const n, kills = 400, 4
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for i := range n {
			for pub.Publish("killed", adaptertest.Numbered("key", i, 1)...) != nil {
				if t.Context().Err() != nil {
					return
				}
			}
		}
	})
	seen, limit := make(map[string]bool), time.After(4*wait)
	for killed := 0; len(seen) < n; {
		select {
		case m, open := <-in:
			if !open {
				t.Fatal("the channel is closed by a kill")
			}
			if i, err := strconv.Atoi(string(m.Payload)); err != nil || i < 0 || i >= n {
				t.Fatalf("message %q %q came, which nobody has published", m.UUID, m.Payload)
			}
			seen[string(m.Payload)] = true
			if len(seen) > (killed+1)*n/(kills+1) {
				killed++
				server.kill(t)
				server.start(t)
			}
			m.Ack()
		case <-limit:
			t.Fatalf("received %d of %d messages in %v", len(seen), n, 4*wait)
		}
	}
}

// server is a nats-server process of one test.
type server struct {
	address, dir string
	process      *exec.Cmd
}

func newServer(t *testing.T) *server {
	testserver.NATS(t) // where there is one, there is its program
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &server{address: l.Addr().String(), dir: t.TempDir()}
	t.Cleanup(func() { s.kill(t) })
	return s
}

func (s *server) start(t *testing.T) {
	t.Helper()
	host, port, _ := net.SplitHostPort(s.address)
	s.process = exec.Command("nats-server", "-js", "-sd", s.dir, "-a", host, "-p", port)
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	// It takes connections before JetStream has recovered, and then answers that there is none.
	limit := time.Now().Add(wait)
	for {
		err := s.answers()
		if err == nil {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("nats-server is not ready after %v: %v", wait, err)
		}
	}
}

func (s *server) answers() error {
	conn, err := nats.Connect("nats://"+s.address, nats.Timeout(wait))
	if err != nil {
		return err
	}
	defer conn.Close()
	reply, err := conn.Request("$JS.API.INFO", nil, wait)
	if err != nil {
		return err
	}
	if strings.Contains(string(reply.Data), `"error"`) {
		return fmt.Errorf("JetStream answers %s", reply.Data)
	}
	return nil
}

func (s *server) kill(t *testing.T) {
	if s.process == nil {
		return
	}
	if err := s.process.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = s.process.Wait() // "signal: killed"
	s.process = nil
}
