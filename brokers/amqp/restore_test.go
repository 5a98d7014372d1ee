package amqp_test

import (
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/internal/testserver"
)

// measured waits until a subscription has asked for its lag, which it does not do again within an hour.
func measured(t *testing.T, b *amqp.Broker, topic string) {
	t.Helper()
	adaptertest.Eventually(t, func() (bool, string) {
		_, known := b.Lag("c", topic)
		return known, "the lag is not known"
	})
}

// seen returns a channel that is closed when something with text in it is sent.
func seen(text string) (on func(sent string), saw <-chan struct{}) {
	closed := make(chan struct{})
	once := sync.OnceFunc(func() { close(closed) })
	return func(sent string) {
		if strings.Contains(sent, text) {
			once()
		}
	}, closed
}

// publisher publishes the number n to a topic, from any goroutine.
func publisher(t *testing.T, b *amqp.Broker, topic string) func(n int) {
	t.Helper()
	pub := adaptertest.Publisher(t, b)
	return func(n int) {
		if err := pub.Publish(topic, adaptertest.Numbered("", n, 1)...); err != nil {
			t.Errorf("Publish: %v", err)
		}
	}
}

func deleteQueue(t *testing.T, queue string) {
	t.Helper()
	if _, err := channel(t, testserver.AMQP(t)).QueueDelete(queue, false, false, false); err != nil {
		t.Fatal(err)
	}
}

// The only queue was deleted. Nothing was to be handed over when it was made again, and what was published before it was bound stayed where it
// was until the next lost connection, while what followed it came.
func TestWhatIsPublishedBeforeADeletedQueueIsBoundAgainArrives(t *testing.T) {
	line, url := newTap(t)
	b, other := open(t, amqp.Config{URLs: []string{url}, LagInterval: time.Hour}), open(t, amqp.Config{})
	topic := rand.Text()
	_, in := adaptertest.Subscribe(t, b, "c", topic, 4)
	measured(t, b, topic)
	publish := publisher(t, other, topic)
	publish(0)
	adaptertest.Ack(t, in, 1)
	var once sync.Once
	line.set(func(sent string) {
		if strings.Contains(sent, binds(topic+"/c", topic)) {
			once.Do(func() { publish(1) })
		}
	})
	deleteQueue(t, topic+"/c")
	got := adaptertest.Ack(t, in, 1)
	publish(2)
	if got = append(got, adaptertest.Ack(t, in, 1)...); !slices.Equal(got, adaptertest.Numbers(1, 2)) {
		t.Errorf("got %q, want 1 and 2", got)
	}
}

// The queue was bound again before the backlog was handed over to it: what was published meanwhile overtook all of it.
func TestNothingOvertakesTheBacklogOfADeletedQueue(t *testing.T) {
	line, url := newTap(t)
	b, other := open(t, amqp.Config{URLs: []string{url}, LagInterval: time.Hour}), open(t, amqp.Config{})
	topic := rand.Text()
	_, in := adaptertest.Subscribe(t, b, "c", topic, 4)
	measured(t, b, topic)
	publish := publisher(t, other, topic)
	publish(0)
	adaptertest.Ack(t, in, 1)
	const n = 20
	published := make(chan struct{})
	var once sync.Once
	line.set(func(sent string) {
		select {
		case <-published:
		case <-t.Context().Done():
		}
		if strings.Contains(sent, gets(topic+"/unrouted!")) {
			once.Do(func() { publish(n + 1) })
		}
	})
	deleteQueue(t, topic+"/c")
	adaptertest.Publish(t, other, topic, adaptertest.Numbered("", 1, n)...)
	close(published)
	if got, want := adaptertest.Ack(t, in, n+1), adaptertest.Numbers(1, n+1); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// An exchange was deleted, and with it the bindings. The next publisher made it again, without them. No consumer was told, and no
// message came any more, at a lag of 0.
func TestQueuesOfADeletedExchangeAreBoundAgain(t *testing.T) {
	line, url := newTap(t)
	b, other := open(t, amqp.Config{URLs: []string{url}, LagInterval: 20 * time.Millisecond}), open(t, amqp.Config{})
	topic := rand.Text()
	_, c := adaptertest.Subscribe(t, b, "c", topic, 4)
	_, d := adaptertest.Subscribe(t, b, "d", topic, 4)
	const n = 20
	published := make(chan struct{})
	bindC, boundC := seen(binds(topic+"/c", topic))
	bindD, boundD := seen(binds(topic+"/d", topic))
	line.set(func(sent string) {
		select {
		case <-published:
		case <-t.Context().Done():
		}
		bindC(sent)
		bindD(sent)
	})
	if err := channel(t, testserver.AMQP(t)).ExchangeDelete(topic, false, false); err != nil {
		t.Fatal(err)
	}
	adaptertest.Publish(t, other, topic, adaptertest.Numbered("", 0, n)...)
	close(published)
	for name, in := range map[string]<-chan *message.Message{"c": c, "d": d} {
		if got, want := adaptertest.Ack(t, in, n), adaptertest.Numbers(0, n); !slices.Equal(got, want) {
			t.Errorf("consumer %s got %q, want %q", name, got, want)
		}
	}
	<-boundC
	<-boundD // what is published between the two comes to one of them alone
	adaptertest.Publish(t, other, topic, adaptertest.Numbered("", n, 1)...)
	for name, in := range map[string]<-chan *message.Message{"c": c, "d": d} {
		if got := adaptertest.Ack(t, in, 1); got[0] != adaptertest.Numbers(n, 1)[0] {
			t.Errorf("consumer %s got %q then, want %d", name, got, n)
		}
	}
}

// The server is frozen: it answers nothing, and its connections do not end. The end of a subscription waited for it until the heartbeats had
// failed, for 15 s.
func TestEndOfASubscriptionDoesNotWaitForAFrozenServer(t *testing.T) {
	const limit = 300 * time.Millisecond
	closes := func(t *testing.T, sub message.Subscriber) {
		t.Helper()
		began := time.Now()
		if err := sub.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if took := time.Since(began); took > limit+time.Second {
			t.Errorf("Close took %v, CloseTimeout is %v", took, limit)
		}
	}
	t.Run("it reads", func(t *testing.T) {
		line, url := newTap(t)
		b := open(t, amqp.Config{URLs: []string{url}, CloseTimeout: limit})
		topic := rand.Text()
		sub, in := adaptertest.Subscribe(t, b, "c", topic, 4)
		adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 3)...)
		held := adaptertest.Take(t, in, 3)
		line.freeze()
		held[0].Ack()
		if !adaptertest.Delivery(t, held[1]).Delay(time.Second) {
			t.Error("Delay() = false")
		}
		closes(t, sub)
	})
	t.Run("it subscribes again", func(t *testing.T) {
		line, url := newTap(t)
		b := open(t, amqp.Config{URLs: []string{url}, CloseTimeout: limit, LagInterval: time.Hour})
		topic := rand.Text()
		sub, _ := adaptertest.Subscribe(t, b, "c", topic, 4)
		measured(t, b, topic)
		ask, asked := seen(declares(topic + "/c"))
		line.set(func(sent string) {
			if strings.Contains(sent, declares(topic+"/c")) {
				line.freeze()
			}
			ask(sent)
		})
		deleteQueue(t, topic+"/c")
		select {
		case <-asked:
		case <-time.After(wait):
			t.Fatal("it does not subscribe again")
		}
		closes(t, sub)
	})
}
