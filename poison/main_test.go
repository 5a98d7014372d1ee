package poison_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/poison"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errDown   = errors.New("warehouse is down")
	errRefuse = errors.New("broker refuses")
)

// dltPublisher is a publisher that keeps what it gets, or refuses it.
type dltPublisher struct {
	mu       sync.Mutex
	refuse   func(*message.Message) error // nil: takes all
	tries    int
	topics   []string
	messages []*message.Message
}

func (d *dltPublisher) Publish(topic string, messages ...*message.Message) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, msg := range messages {
		d.tries++
		if d.refuse != nil {
			if err := d.refuse(msg); err != nil {
				return err
			}
		}
		d.topics = append(d.topics, topic)
		d.messages = append(d.messages, msg)
	}
	return nil
}

func (d *dltPublisher) Close() error { return nil }

// only returns the one dead letter that was written.
func (d *dltPublisher) only(t *testing.T) (*message.Message, poison.Record) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.messages) != 1 {
		t.Fatalf("%d dead letters were written, want 1", len(d.messages))
	}
	r, err := poison.Parse(d.messages[0])
	if err != nil {
		t.Fatal(err)
	}
	return d.messages[0], r
}

func (d *dltPublisher) none(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tries != 0 {
		t.Errorf("%d tries to write a dead letter, want 0", d.tries)
	}
}

// newPoison returns a Poison of billing.orders that writes to pub; change adapts its Config.
func newPoison(t testing.TB, pub message.Publisher, change ...func(*poison.Config)) *poison.Poison {
	t.Helper()
	c := poison.Config{Consumer: "billing.orders", Publisher: pub, Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&c)
	}
	p, err := poison.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newMessage returns a message as an adapter delivers it.
func newMessage(ctx context.Context) *message.Message {
	msg := message.NewMessage("u-1", []byte("\xff\x00 not JSON"))
	msg.Metadata = message.Metadata{
		"ce_specversion": "1.0", "ce_id": "e-1", "ce_source": "/shop", "ce_type": "order.placed",
		"ce_correlationid": "conv-7", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	msg.SetContext(brokers.WithDelivery(ctx, &brokers.Delivery{
		Topic: "orders", Incarnation: "inc-1", Partition: 3, Offset: 41, Key: []byte("order-1"),
		Time: time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC), Count: 2,
	}))
	flight.Ensure(msg).Topic = "orders"
	return msg
}

// fails is a handler that returns err and an output.
func fails(err error) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("partial output", nil)}, err
	}
}

func receipt(msg *message.Message) flight.Receipt { return flight.From(msg.Context()).Receipt() }

func isStop(err error) bool {
	var c *classify.Classifier
	return c.Classify(err).Verdict == classify.VerdictStop
}

// gaveUp is what middleware.Retry returns.
func gaveUp(v classify.Verdict, err error) error {
	at := time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC)
	return &middleware.GaveUpError{
		Verdict: v, ErrorType: "unavailable", Attempts: 5,
		FirstFailure: at, LastFailure: at.Add(1500 * time.Millisecond), Err: err,
	}
}
