package amqp_test

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/internal/testserver"
)

// The stock adapter reads the channel of deliveries without looking whether it is closed, and after a lost connection hands over an empty
// message that nobody has published. And an ack for a delivery of the old channel would settle another one on the new channel that has got the same tag.
func TestLostConnectionGivesBackAndMakesNoPhantom(t *testing.T) {
	p, url := testserver.NewProxyOf(t, testserver.AMQP(t))
	shared := open(t, amqp.Config{})
	b := open(t, amqp.Config{URLs: []string{url}})
	topic := rand.Text()
	_, in := adaptertest.Subscribe(t, b, "c", topic, 4)
	adaptertest.Publish(t, shared, topic, adaptertest.Numbered("", 0, 8)...)
	old := adaptertest.Take(t, in, 4)
	p.Cut()
	for _, m := range old {
		select {
		case <-m.Context().Done():
			if cause := context.Cause(m.Context()); !errors.Is(cause, amqp.ErrLost) {
				t.Errorf("the context of %s ended with %v, want %v", m.Payload, cause, amqp.ErrLost)
			}
		case <-time.After(wait):
			t.Fatalf("the context of %s goes on", m.Payload)
		}
	}
	again := adaptertest.Take(t, in, 4) // tags 1 to 4 of the new channel
	for i, m := range again {
		if d := adaptertest.Delivery(t, m); string(m.Payload) != strconv.Itoa(i) || d.Count != 2 {
			t.Errorf("got %q, delivery %d; want %d, the second delivery", m.Payload, d.Count, i)
		}
	}
	for _, m := range old {
		m.Ack()
		adaptertest.Delivery(t, m).Settled()
	}
	adaptertest.Quiet(t, in, quiet) // an old ack that counted would have made room for more
	for _, m := range again {
		m.Ack()
	}
	if got, want := adaptertest.Ack(t, in, 4), adaptertest.Numbers(4, 4); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	adaptertest.Quiet(t, in, quiet)
}

func TestPublishWaitsForTheServer(t *testing.T) {
	p, url := testserver.NewProxyOf(t, testserver.AMQP(t))
	b := open(t, amqp.Config{URLs: []string{url}, PublishTimeout: 2 * wait})
	topic := rand.Text()
	_, in := adaptertest.Subscribe(t, open(t, amqp.Config{}), "c", topic, 4)
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 1)...)
	p.Down()
	pub := adaptertest.Publisher(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	m := message.NewMessageWithContext(ctx, "id", nil)
	err := pub.Publish(topic, m)
	if failed, ok := errors.AsType[*brokers.PublishError](err); !ok || failed.Failed[0].UUID != "id" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Publish without a server, for a message with a limit of 300 ms: %v; want a PublishError", err)
	}
	done := make(chan error, 1)
	go func() { done <- pub.Publish(topic, adaptertest.Numbered("", 1, 1)...) }()
	select {
	case err := <-done:
		t.Fatalf("Publish without a server returned: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	p.Up()
	if err := <-done; err != nil {
		t.Errorf("Publish, with a server after some time: %v", err)
	}
	if got, want := adaptertest.Ack(t, in, 2), adaptertest.Numbers(0, 2); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// S2: a publisher is closed while calls run. Those that have begun end with a confirm.
func TestCloseWaitsForPublish(t *testing.T) {
	b := open(t, amqp.Config{})
	topic := rand.Text()
	_, in := adaptertest.Subscribe(t, b, "c", topic, 100)
	pub := adaptertest.Publisher(t, b)
	var ended sync.WaitGroup
	var mu sync.Mutex
	var stored []string
	begun := make(chan struct{}, 64)
	for w := range 8 {
		ended.Go(func() {
			for i := 0; ; i++ {
				id := strconv.Itoa(w) + "-" + strconv.Itoa(i)
				err := pub.Publish(topic, message.NewMessage(id, []byte(id)))
				if err != nil {
					if !errors.Is(err, amqp.ErrClosed) {
						t.Errorf("Publish: %v, want %v", err, amqp.ErrClosed)
					}
					return
				}
				mu.Lock()
				stored = append(stored, id)
				mu.Unlock()
				select {
				case begun <- struct{}{}:
				default:
				}
			}
		})
	}
	for range 20 {
		<-begun
	}
	if err := pub.Close(); err != nil {
		t.Error(err)
	}
	ended.Wait()
	if got, want := sorted(adaptertest.Ack(t, in, len(stored))), sorted(stored); !slices.Equal(got, want) {
		t.Errorf("got %q, want what was confirmed, %q", got, want)
	}
	adaptertest.Quiet(t, in, quiet)
}

// The queue is deleted under a running consumer: it is made again, and what was published meanwhile arrives.
func TestDeletedQueueIsMadeAgain(t *testing.T) {
	b := open(t, amqp.Config{})
	topic := rand.Text()
	_, in := adaptertest.Subscribe(t, b, "c", topic, 4)
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 1)...)
	adaptertest.Ack(t, in, 1)
	if _, err := channel(t, testserver.AMQP(t)).QueueDelete(topic+"/c", false, false, false); err != nil {
		t.Fatal(err)
	}
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 1, 20)...)
	if got, want := sorted(adaptertest.Ack(t, in, 20)), sorted(adaptertest.Numbers(1, 20)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestClosedBrokerEndsAWaitingPublish(t *testing.T) {
	p, url := testserver.NewProxyOf(t, testserver.AMQP(t))
	p.Down()
	b := open(t, amqp.Config{URLs: []string{url}, PublishTimeout: 300 * time.Millisecond})
	pub := adaptertest.Publisher(t, b)
	done := make(chan error, 1)
	go func() { done <- pub.Publish("topic", adaptertest.Numbered("", 0, 1)...) }()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-done:
		if err == nil {
			t.Error("Publish without a server gave no error")
		}
	case <-time.After(wait):
		t.Error("Publish goes on")
	}
}
