package kafka_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
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
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers/kafka"
)

// Every second record of thousands is acked: nothing can tell that shorter than the cluster's limit. What fits is told, and a cluster that
// checks the limit takes it.
func TestMetadataKeepsToTheLimit(t *testing.T) {
	_, seeds := fake(t)
	metadataLimit(t, seeds)
}

func TestMetadataKeepsToTheLimitOnKafka(t *testing.T) { metadataLimit(t, real(t)) }

func metadataLimit(t *testing.T, seeds []string) {
	const n = 4999 // odd: the last one is not acked
	topic := uniqueTopic(t, seeds, 1)
	fill(t, seeds, topic, 0, n, key)
	config := quick(seeds)
	config.BufferRecords, config.MaxSpan = n, n
	b := open(t, config)
	r := read(t, b, topic, n)
	for i, m := range r.take(n) {
		if i%2 == 1 {
			m.Ack()
		}
	}
	r.close()
	o, metadata := offsetOf(t, seeds, "c", topic, 0)
	if o > 0 || len(metadata) < 4000 || len(metadata) > 4096 {
		t.Errorf("committed offset is %d with %d bytes of metadata, want 0 and almost 4096", o, len(metadata))
	}
	r = read(t, b, topic, n)
	again := 0
	for got := 0; got < n/2+1; {
		m := r.next()
		m.Ack()
		if at(m).Offset%2 == 0 {
			got++
		} else {
			again++
		}
	}
	if again == 0 || again > n/2-1000 {
		t.Errorf("%d records that were acked came again, want those that did not fit and no more", again)
	}
	r.close()
	if o, metadata := offsetOf(t, seeds, "c", topic, 0); o != n || metadata != "" {
		t.Errorf("in the end %d is committed with metadata %q, want %d and none", o, metadata, n)
	}
}

// A cluster is set to take less metadata than Kafka's default. The commits must go on without.
func TestClusterThatTakesNoMetadata(t *testing.T) {
	c, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	refuseMetadata(c)
	fill(t, seeds, "topic", 0, 4, key)
	b := open(t, quick(seeds))
	r := read(t, b, "topic", 4)
	held := r.take(4)
	held[0].Ack()
	held[2].Ack()
	eventually(t, "a commit of 1", 5*time.Second, func() bool { o, _ := offsetOf(t, seeds, "c", "topic", 0); return o == 1 })
	r.close()
	if o, metadata := offsetOf(t, seeds, "c", "topic", 0); o != 1 || metadata != "" {
		t.Errorf("committed offset is %d with metadata %q, want 1 and none", o, metadata)
	}
}

// The metadata of a commit may be another program's, or of a log that was truncated since. Believing it would lose records.
func TestForeignMetadataIsIgnored(t *testing.T) {
	for _, metadata := range []string{"kgo-member-1234", "hr1 1 1+2@0 zzzzzzz", "hr9 1 1+2@0 0", strings.Repeat("hr1 ", 1000)} {
		t.Run(metadata[:min(len(metadata), 20)], func(t *testing.T) {
			_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
			fill(t, seeds, "topic", 0, 4, key)
			commitAs(t, seeds, "topic", 1, metadata)
			r := read(t, open(t, quick(seeds)), "topic", 4)
			if got := fmt.Sprint(offsets(r.take(3))); got != "[1 2 3]" {
				t.Errorf("offsets %s came, want [1 2 3]", got)
			}
		})
	}
}

// Handlers take longer than the session timeout. A client whose heartbeats wait for its handlers is expelled and runs all of it again.
func TestSlowHandlersKeepTheirPartitions(t *testing.T) {
	_, seeds := fake(t)
	slowHandlers(t, seeds)
}

func TestSlowHandlersKeepTheirPartitionsOnKafka(t *testing.T) { slowHandlers(t, real(t)) }

func slowHandlers(t *testing.T, seeds []string) {
	const keys, each = 4, 2
	topic := "slow." + rand.Text()
	publishKeys(t, seeds, topic, 2, keys, each)
	config := quick(seeds)
	config.Options = append(config.Options, kgo.SessionTimeout(time.Second))
	h := newHistory()
	p := startProcess(t, 0, config, topic, topic, 16, func(ctx context.Context, process int, key string, seq int) error {
		h.start(process, key)
		defer h.end(process, key)
		if err := wait(ctx, 1500*time.Millisecond); err != nil {
			return err
		}
		h.effect(effect{key, seq, process})
		return nil
	})
	eventually(t, "all have an effect", 20*time.Second, func() bool { return h.distinct() == keys*each })
	p.stop(t)
	h.check(t, keys, each, 0)
}

// A process is frozen for longer than its session, and thaws. It may finish what it was doing; it must not commit, and it loses and repeats
// nothing that the others did not have to.
func TestZombieOnKafka(t *testing.T) { killed(t, real(t), syscall.SIGSTOP) }

// A process is killed. What it had not committed runs again elsewhere, in order.
func TestKillOnKafka(t *testing.T) { killed(t, real(t), syscall.SIGKILL) }

func killed(t *testing.T, seeds []string, signal syscall.Signal) {
	const keys, each = 20, 60
	topic := "killed." + rand.Text()
	publishKeys(t, seeds, topic, 4, keys, each)
	h := newHistory()
	victim, other := startChild(t, seeds, topic, 1, h), startChild(t, seeds, topic, 2, h)
	eventually(t, "both have done something", 20*time.Second, func() bool { return h.by(1) > 20 && h.by(2) > 20 })
	if err := victim.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	if signal == syscall.SIGSTOP {
		eventually(t, "the other has done what the frozen one had left", 60*time.Second, func() bool { return h.distinct() == keys*each })
		if err := victim.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all have an effect", 60*time.Second, func() bool { return h.distinct() == keys*each })
	if signal == syscall.SIGSTOP {
		_ = victim.Process.Signal(syscall.SIGTERM)
		if err := victim.Wait(); err != nil {
			t.Errorf("the thawed process: %v", err)
		}
	}
	_ = other.Process.Signal(syscall.SIGTERM)
	if err := other.Wait(); err != nil {
		t.Errorf("the other process: %v", err)
	}
	// At most what was in flight at the victim, and what it had done since its last commit.
	h.check(t, keys, each, 16+100)
}

func (h *history) by(process int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, e := range h.effects {
		if e.process == process {
			n++
		}
	}
	return n
}

// startChild runs TestChild in a process of its own, whose effects go into h.
func startChild(t *testing.T, seeds []string, topic string, number int, h *history) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(os.Environ(), "HEADRACE_TEST_CHILD="+topic, "HEADRACE_TEST_NUMBER="+strconv.Itoa(number), "HEADRACE_TEST_SEEDS="+strings.Join(seeds, ","))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var e effect
			if _, err := fmt.Sscanf(lines.Text(), "effect %s %d", &e.key, &e.seq); err == nil {
				e.process = number
				h.effect(e)
			}
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		reading.Wait()
	})
	return cmd
}

// TestChild is the process that the tests above kill; alone it does nothing.
func TestChild(t *testing.T) {
	topic := os.Getenv("HEADRACE_TEST_CHILD")
	if topic == "" {
		t.Skip("only as a child of other tests")
	}
	number, err := strconv.Atoi(os.Getenv("HEADRACE_TEST_NUMBER"))
	if err != nil {
		t.Fatal(err)
	}
	config := quick(strings.Split(os.Getenv("HEADRACE_TEST_SEEDS"), ","))
	config.Options = append(config.Options, kgo.SessionTimeout(time.Second))
	var out sync.Mutex
	p := startProcess(t, number, config, topic, topic, 16, func(ctx context.Context, _ int, key string, seq int) error {
		if err := wait(ctx, jitter(10*time.Millisecond)); err != nil {
			return err
		}
		out.Lock()
		defer out.Unlock()
		_, err := fmt.Printf("effect %s %d\n", key, seq)
		return err
	})
	ctx, stop := notifyTerm(t.Context())
	defer stop()
	<-ctx.Done()
	p.stop(t)
}

// A broker of a cluster of three stops and comes back, each in turn, while messages are published and handled. Leaders and coordinators
// change; nothing is lost or out of order, and nothing published is published twice.
func TestBrokersRestartOnCluster(t *testing.T) {
	if os.Getenv("HEADRACE_KAFKA3_SEEDS") == "" {
		t.Skip("HEADRACE_KAFKA3_SEEDS is not set: run integration/servers start kafka3a kafka3b kafka3c; it takes minutes, and CI does not")
	}
	seeds := strings.Split(os.Getenv("HEADRACE_KAFKA3_SEEDS"), ",")
	const keys = 20
	topic := uniqueTopic(t, seeds, 6)
	h := newHistory()
	config := quick(seeds)
	config.CommitTimeout = 4 * time.Second
	config.Logger = slog.New(slog.DiscardHandler)
	config.Options = append(config.Options, kgo.RebalanceTimeout(10*time.Second))
	var processes []*process
	for i := range 2 {
		processes = append(processes, startProcess(t, i, config, topic, topic, 32, func(ctx context.Context, process int, key string, seq int) error {
			h.start(process, key)
			defer h.end(process, key)
			if err := wait(ctx, jitter(4*time.Millisecond)); err != nil {
				return err
			}
			h.effect(effect{key, seq, process})
			return nil
		}))
	}
	b := open(t, config)
	pub := publisher(t, b)
	each, calm, published := 0, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(published)
		for {
			batch := make([]*message.Message, keys)
			for k := range batch {
				batch[k] = message.NewMessage("", []byte(strconv.Itoa(each)))
				batch[k].SetContext(kafka.WithKey(context.Background(), []byte(strconv.Itoa(k))))
			}
			if err := pub.Publish(topic, batch...); err != nil {
				t.Errorf("publish: %v", err)
				return
			}
			each++
			select {
			case <-calm:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	for _, node := range []string{"kafka3a", "kafka3b", "kafka3c"} {
		before := h.distinct()
		servers(t, "stop", node)
		eventually(t, "effects go on without "+node, 60*time.Second, func() bool { return h.distinct() > before+5*keys })
		servers(t, "start", node)
	}
	close(calm)
	<-published
	eventually(t, "all have an effect", 60*time.Second, func() bool { return h.distinct() == keys*each })
	for _, p := range processes {
		p.stop(t)
	}
	// A member can be expelled with its coordinator: then what it had in flight and had not committed runs again.
	h.check(t, keys, each, keys*each)
	t.Logf("%d effects of %d messages", len(h.effects), keys*each)
}

func servers(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join("..", "..", "integration", "servers"), args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("integration/servers %v: %v\n%s", args, err, out)
	}
}
