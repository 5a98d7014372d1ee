package jetstream_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
)

// A stream that others made, with an hour's retention, passed for one of seven days: the margin was counted down from these.
func TestStreamOfAnotherRetentionIsWarnedOf(t *testing.T) {
	var log lines
	b, err := embedded.New(embedded.Config{Dir: t.TempDir(), Logger: logTo(t)}, jetstream.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := admin(t, b).CreateStream(t.Context(), natsjs.StreamConfig{Name: "theirs", Subjects: []string{"theirs"}, MaxAge: time.Hour}); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"ours", "theirs"} {
		sub, err := b.Subscriber(brokers.Subscription{Consumer: "billing"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sub.Subscribe(t.Context(), topic); err != nil {
			t.Fatal(err)
		}
	}
	got := log.with("Config.MaxAge")
	if len(got) != 1 || !strings.Contains(got[0], "topic=theirs") || !strings.Contains(got[0], "stream_max_age=1h0m0s config_max_age=168h0m0s") {
		t.Errorf("warnings of the retention: %q, want one, of theirs", got)
	}
}

// lines is a log in memory.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// with returns the lines that have text in them.
func (l *lines) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}
