package pulsar_test

import (
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/pulsar"
	"github.com/headrace-go/headrace/internal/testserver"
)

// proxied returns a client whose connections go through a proxy.
func proxied(tb testing.TB) (*testserver.Proxy, pulsarclient.Client) {
	tb.Helper()
	server := strings.TrimPrefix(testserver.Pulsar(tb), "pulsar://")
	p := testserver.NewProxyAt(tb, testserver.PulsarProxy(tb), server)
	c, err := pulsarclient.NewClient(pulsarclient.ClientOptions{
		URL:               "pulsar://" + p.Addr(),
		ListenerName:      "proxied",
		OperationTimeout:  2 * time.Second,
		ConnectionTimeout: time.Second,
		Logger:            log.NewLoggerWithSlog(slog.New(slog.DiscardHandler)),
		MetricsRegisterer: prometheus.NewRegistry(),
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return p, c
}

// admin makes a request of the server's administration about a topic of the default namespace.
func admin(tb testing.TB, method, path, body string) string {
	tb.Helper()
	url := testserver.PulsarAdmin(tb) + "/admin/v2/persistent/public/default/" + path
	req, err := http.NewRequestWithContext(tb.Context(), method, url, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		tb.Fatalf("%s %s: %s %s %v", method, path, resp.Status, text, err)
	}
	return string(text)
}

func subscribe(tb testing.TB, b *pulsar.Broker, consumer, topic string, window int) (message.Subscriber, <-chan *message.Message) {
	tb.Helper()
	sub, err := b.Subscriber(brokers.Subscription{Consumer: consumer, Topic: topic, Window: window})
	if err != nil {
		tb.Fatal(err)
	}
	in, err := sub.Subscribe(tb.Context(), topic)
	if err != nil {
		tb.Fatal(err)
	}
	return sub, in
}

func publish(tb testing.TB, b *pulsar.Broker, topic string, messages ...*message.Message) {
	tb.Helper()
	p, err := b.Publisher()
	if err != nil {
		tb.Fatal(err)
	}
	if err := p.Publish(topic, messages...); err != nil {
		tb.Fatal(err)
	}
}

// numbered returns messages of one key, whose payloads are the numbers from first on.
func numbered(key string, first, n int) []*message.Message {
	all := make([]*message.Message, n)
	for i := range all {
		all[i] = message.NewMessage(key+"-"+strconv.Itoa(first+i), []byte(strconv.Itoa(first+i)))
		all[i].Metadata["ce_partitionkey"] = key
	}
	return all
}

func next(tb testing.TB, in <-chan *message.Message) *message.Message {
	tb.Helper()
	select {
	case m, open := <-in:
		if !open {
			tb.Fatal("the channel is closed, want a message")
		}
		return m
	case <-time.After(wait):
		tb.Fatalf("no message in %v", wait)
	}
	return nil
}

// ack acks the next n messages and returns their payloads.
func ack(tb testing.TB, in <-chan *message.Message, n int) []string {
	tb.Helper()
	got := make([]string, n)
	for i := range got {
		m := next(tb, in)
		got[i] = string(m.Payload)
		m.Ack()
	}
	return got
}

func quiet(tb testing.TB, in <-chan *message.Message) {
	tb.Helper()
	select {
	case m, open := <-in:
		if open {
			tb.Errorf("message %q came, want none", m.Payload)
		}
	case <-time.After(300 * time.Millisecond):
	}
}

func delivery(tb testing.TB, m *message.Message) *brokers.Delivery {
	tb.Helper()
	d := brokers.DeliveryOf(m.Context())
	if d == nil {
		tb.Fatalf("message %q has no delivery", m.Payload)
	}
	return d
}

// ends waits for the end of a delivery's context.
func ends(tb testing.TB, m *message.Message) {
	tb.Helper()
	select {
	case <-m.Context().Done():
	case <-time.After(wait):
		tb.Fatalf("the context of message %q has not ended", m.Payload)
	}
}
