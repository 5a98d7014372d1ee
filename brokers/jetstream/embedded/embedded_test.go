package embedded_test

import (
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func config(tb testing.TB, dir string) embedded.Config {
	return embedded.Config{Dir: dir, Logger: slog.New(slog.NewTextHandler(tb.Output(), nil))}
}

func TestStateSurvivesARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "on demand")
	for i, want := range []string{"0", "1"} {
		b, err := embedded.New(config(t, dir), jetstream.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			pub, err := b.Publisher()
			if err != nil {
				t.Fatal(err)
			}
			if err := pub.Publish("orders", message.NewMessage("0", nil), message.NewMessage("1", nil)); err != nil {
				t.Fatal(err)
			}
		}
		sub, err := b.Subscriber(brokers.Subscription{Consumer: "c", Topic: "orders", Window: 1})
		if err != nil {
			t.Fatal(err)
		}
		in, err := sub.Subscribe(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		select {
		case m := <-in:
			if m.UUID != want {
				t.Errorf("run %d received %q, want %q", i+1, m.UUID, want)
			}
			m.Ack()
		case <-time.After(15 * time.Second):
			t.Fatalf("run %d received nothing", i+1)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	}
}

// Two servers on one directory would write over each other.
func TestDirectoryBelongsToOneServer(t *testing.T) {
	if runtime.GOOS == "windows" || runtime.GOOS == "plan9" {
		t.Skip("no lock on this system")
	}
	dir := t.TempDir()
	first, err := embedded.Start(config(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := embedded.Start(config(t, dir)); err == nil {
		t.Error("a second server on the same directory gave no error")
		_ = s.Close() // the failure is reported
	} else if !strings.Contains(err.Error(), dir) {
		t.Errorf("the error does not name the directory: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := embedded.Start(config(t, dir))
	if err != nil {
		t.Fatalf("after Close: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestListen(t *testing.T) {
	c := config(t, t.TempDir())
	s, err := embedded.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.URL(); got != "" {
		t.Errorf("URL without Listen is %q", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	c.Listen = "127.0.0.1:0"
	if s, err = embedded.Start(c); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn, err := nats.Connect(s.URL())
	if err != nil {
		t.Fatalf("connect to %q: %v", s.URL(), err)
	}
	conn.Close()
}

func TestConfigErrorsNameTheField(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		config embedded.Config
		want   string
	}{
		{embedded.Config{}, "Config.Dir is empty"},
		{embedded.Config{Dir: dir, MaxBytes: -1}, "Config.MaxBytes is -1"},
		{embedded.Config{Dir: dir, SyncInterval: -1}, "Config.SyncInterval is -1ns"},
		{embedded.Config{Dir: dir, Listen: "nowhere"}, `Config.Listen is "nowhere"`},
	} {
		if _, err := embedded.Start(tt.config); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Start gave %v, want an error with %q", err, tt.want)
		}
	}
	if _, err := embedded.New(embedded.Config{Dir: dir}, jetstream.Config{URL: "nats://x"}); err == nil {
		t.Error("New with a URL gave no error")
	}
	if _, err := embedded.New(embedded.Config{Dir: dir}, jetstream.Config{Window: -1}); err == nil {
		t.Error("New with a bad broker Config gave no error")
	}
}
