package amqp_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/internal/testserver"
)

// server is a RabbitMQ of the tests' own.
type server struct {
	tb  testing.TB
	dir string
}

func ownServer(tb testing.TB) *server {
	tb.Helper()
	testserver.AMQP(tb)                           // a missing one skips, or fails in CI
	dir, err := os.MkdirTemp("", "headrace-own-") // the server's user must be able to see it
	if err != nil {
		tb.Fatal(err)
	}
	s := &server{tb, dir}
	tb.Cleanup(func() { s.command("clean") })
	s.command("start", "rabbitmq")
	return s
}

func (s *server) command(args ...string) string {
	s.tb.Helper()
	cmd := exec.Command("../../integration/servers", args...)
	cmd.Env = append(os.Environ(), "HEADRACE_SERVERS_DIR="+s.dir)
	out, err := cmd.Output()
	if err != nil {
		s.tb.Fatalf("servers %v: %v", args, err)
	}
	return string(out)
}

func (s *server) url() string {
	s.tb.Helper()
	_, rest, _ := strings.Cut(s.command("env", "rabbitmq"), "'")
	url, _, _ := strings.Cut(rest, "'")
	return url
}

func (s *server) file(name string) string {
	s.tb.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		s.tb.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// kill ends the server without a word.
func (s *server) kill() {
	s.tb.Helper()
	pid, err := strconv.Atoi(s.file("rabbitmq/pid"))
	if err != nil {
		s.tb.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		s.tb.Fatal(err)
	}
}

// ctl runs rabbitmqctl.
func (s *server) ctl(args ...string) {
	s.tb.Helper()
	cmd := exec.Command("/usr/lib/rabbitmq/bin/rabbitmqctl", args...)
	cmd.Env = append(os.Environ(), "HOME="+s.dir+"/rabbitmq", "ERL_EPMD_PORT="+s.file("rabbitmq-epmd.port"),
		"RABBITMQ_NODENAME=headrace"+s.file("rabbitmq.port")+"@localhost", "RABBITMQ_CONF_ENV_FILE=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.tb.Fatalf("rabbitmqctl %v: %v\n%s", args, err, out)
	}
}

// With a server of its own: what happens to it would disturb others.
func TestServersTroubles(t *testing.T) {
	s := ownServer(t)
	name := func(consumer, topic string) string { return topic + "/" + consumer } // nothing is swept
	config := amqp.Config{URLs: []string{s.url()}, QueueName: name}
	t.Run("out of memory", func(t *testing.T) { outOfMemory(t, s, config) })
	t.Run("consumer timeout", func(t *testing.T) { consumerTimeout(t, s, config) })
	t.Run("killed under load", func(t *testing.T) { killedUnderLoad(t, s, config) })
}

// The server is short of memory and reads nothing from connections that publish. Consumers must get on all the same, since only they
// make room; and a publish must end.
func outOfMemory(t *testing.T, s *server, config amqp.Config) {
	config.PublishTimeout = 2 * wait
	b := open(t, config)
	const topic = "memory"
	_, in := adaptertest.Subscribe(t, b, "c", topic, 1)
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 10)...)
	m := adaptertest.Next(t, in)
	s.ctl("set_vm_memory_high_watermark", "0.000001")
	pub := adaptertest.Publisher(t, b)
	// The server tells a connection when it has published.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	first := message.NewMessageWithContext(ctx, "first", []byte("first"))
	if err := pub.Publish(topic, first); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Publish to a server without memory, for a message with a limit: %v; want %v", err, context.DeadlineExceeded)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	second := message.NewMessageWithContext(ctx, "second", []byte("second"))
	if err := pub.Publish(topic, second); !errors.Is(err, amqp.ErrBlocked) {
		t.Errorf("Publish on a blocked connection: %v, want %v", err, amqp.ErrBlocked)
	}
	// Nor does the end of a broker wait for the server.
	config.CloseTimeout = 300 * time.Millisecond
	other := open(t, config)
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := adaptertest.Publisher(t, other).Publish(topic, message.NewMessageWithContext(ctx, "first", []byte("first"))); err == nil {
		t.Error("Publish to a server without memory gave no error")
	}
	closed := make(chan error, 1)
	go func() { closed <- other.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("Close: %v", err)
		}
	case <-time.After(wait):
		t.Fatal("Close hangs while the server has no memory")
	}
	done := make(chan error, 1)
	go func() { done <- pub.Publish(topic, message.NewMessage("third", []byte("third"))) }()
	m.Ack()
	adaptertest.Delivery(t, m).Settled()
	adaptertest.Ack(t, in, 9)
	// A consumer that begins now.
	_, late := adaptertest.Subscribe(t, open(t, config), "late", topic, 1)
	select {
	case err := <-done:
		t.Fatalf("Publish on a blocked connection returned: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	s.ctl("set_vm_memory_high_watermark", "absolute", "1GB")
	if err := <-done; err != nil {
		t.Errorf("Publish after the server has memory again: %v", err)
	}
	for _, in := range []<-chan *message.Message{in, late} {
		got := adaptertest.Ack(t, in, 1)
		for got[0] == "first" { // it had been sent, and was not confirmed in time
			got = adaptertest.Ack(t, in, 1)
		}
		if got[0] != "third" {
			t.Errorf("got %q, want third", got)
		}
	}
}

// A handler holds its delivery for longer than the server's consumer_timeout, and the server closes the channel. The handler's context ends; what it
// does with its message later has no effect, and the message comes again.
func consumerTimeout(t *testing.T, s *server, config amqp.Config) {
	s.ctl("eval", "application:set_env(rabbit, consumer_timeout, 1000), application:set_env(rabbit, channel_tick_interval, 300).")
	b := open(t, config)
	const topic = "patience"
	_, in := adaptertest.Subscribe(t, b, "c", topic, 4)
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 2)...)
	held := adaptertest.Take(t, in, 2)
	for _, m := range held {
		select {
		case <-m.Context().Done():
			if cause := context.Cause(m.Context()); !errors.Is(cause, amqp.ErrLost) || !strings.Contains(cause.Error(), "timeout") {
				t.Errorf("the context ended with %v, want %v and the server's reason", cause, amqp.ErrLost)
			}
		case <-time.After(wait):
			t.Fatal("the context of a delivery that is held for too long goes on")
		}
		m.Ack()
	}
	for i, m := range adaptertest.Take(t, in, 2) {
		if d := adaptertest.Delivery(t, m); string(m.Payload) != strconv.Itoa(i) || d.Count != 2 {
			t.Errorf("got %q, delivery %d; want %d, the second", m.Payload, d.Count, i)
		}
		m.Ack()
	}
	s.ctl("eval", "application:set_env(rabbit, consumer_timeout, 1800000), application:set_env(rabbit, channel_tick_interval, 60000).")
}

// The server is killed twice under load, with messages delivered, delayed and on their way. What a publisher was told to be stored arrives,
// and key by key in order but for what comes again.
func killedUnderLoad(t *testing.T, s *server, config amqp.Config) {
	config.PublishTimeout = 4 * wait
	b := open(t, config)
	const topic, n = "restart", 3000
	_, in := adaptertest.Subscribe(t, b, "c", topic, 32)
	// The queues for delays are there for a while before the server is killed: RabbitMQ 3.10 forgets those that are newer than half a second.
	adaptertest.Publish(t, b, topic, message.NewMessage("first", []byte("first")))
	adaptertest.Delivery(t, adaptertest.Next(t, in)).Delay(time.Second)
	adaptertest.Ack(t, in, 1)
	var ended sync.WaitGroup
	defer ended.Wait()
	ended.Go(func() { publishAll(t, b, topic, n, 20) })
	seen, delayed := make(map[int]bool, n), make(map[int]bool)
	highest, restarts := -1, 0
	limit := time.After(8 * wait)
	for len(seen) < n {
		var m *message.Message
		select {
		case m = <-in:
		case <-limit:
			t.Fatalf("got %d of %d", len(seen), n)
		}
		i, err := strconv.Atoi(string(m.Payload))
		if err != nil || i < 0 || i >= n {
			t.Fatalf("got %q, which nobody has published", m.Payload)
		}
		if i%97 == 5 && !delayed[i] {
			delayed[i] = true
			adaptertest.Delivery(t, m).Delay(time.Second)
			continue
		}
		if !seen[i] && !delayed[i] {
			if i < highest {
				t.Errorf("%d came for the first time after %d", i, highest)
			}
			highest = i
		}
		seen[i] = true
		m.Ack()
		if restarts < 2 && len(seen) > (restarts+1)*n/3 {
			restarts++
			s.kill()
			s.command("start", "rabbitmq")
		}
	}
	if restarts != 2 {
		t.Errorf("%d restarts, want 2", restarts)
	}
}
