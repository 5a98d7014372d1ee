package kafka_test

import (
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/internal/leak"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// fake starts a cluster in the process, which ends with the test, and returns its seeds.
func fake(tb testing.TB, opts ...kfake.Opt) (*kfake.Cluster, []string) {
	tb.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.NumBrokers(1),
		kfake.GroupMinSessionTimeout(100 * time.Millisecond),
	}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c, c.ListenAddrs()
}

// real returns the seeds of a real cluster of one node. Only CI must have one.
func real(tb testing.TB) []string {
	tb.Helper()
	return strings.Split(testserver.Kafka(tb), ",")
}

// fast are options that make a group find out about its members in less than a second.
func fast() []kgo.Opt {
	return []kgo.Opt{
		kgo.HeartbeatInterval(50 * time.Millisecond),
		kgo.SessionTimeout(6 * time.Second),
		kgo.MetadataMinAge(50 * time.Millisecond),
	}
}

// output is tb.Output for those who may write after the test: franz-go does not wait for the last word of a group.
func output(tb testing.TB) io.Writer {
	w := &whileRunning{to: tb.Output()}
	tb.Cleanup(w.end)
	return w
}

type whileRunning struct {
	mu sync.Mutex
	to io.Writer
}

func (w *whileRunning) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(b)
}

func (w *whileRunning) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = io.Discard
}

// open returns a broker that ends with the test.
func open(tb testing.TB, config kafka.Config) *kafka.Broker {
	tb.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(output(tb), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	b, err := kafka.New(config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return b
}
