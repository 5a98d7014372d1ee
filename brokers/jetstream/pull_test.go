package jetstream_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/jetstream"
)

// requests tells the batch of each pull request that the server gets.
func requests(t *testing.T, conn *nats.Conn) <-chan int {
	t.Helper()
	batches := make(chan int, 1000)
	sub, err := conn.Subscribe("$JS.API.CONSUMER.MSG.NEXT.>", func(m *nats.Msg) {
		var r struct{ Batch int }
		if err := json.Unmarshal(m.Data, &r); err != nil {
			t.Errorf("pull request %q: %v", m.Data, err)
		}
		batches <- r.Batch
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() }) // the connection may be closed by then
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return batches
}

func nextBatch(t *testing.T, batches <-chan int) int {
	t.Helper()
	select {
	case n := <-batches:
		return n
	case <-time.After(wait):
		t.Fatal("no pull request")
		return 0
	}
}

// The next request waited until the last one had brought everything, and then 5 ms for a room in the window: 256 messages
// a round trip and 5 ms.
func TestNextRequestIsSentWhileTheLastOneIsOpen(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	batches := requests(t, b.Conn())
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 8)
	if n := nextBatch(t, batches); n != 8 {
		t.Fatalf("the first request is for %d, want the window, 8", n)
	}
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 4)...)
	var held []*message.Message
	for range 4 {
		held = append(held, adaptertest.Next(t, in))
	}
	held[0].Ack()
	held[1].Ack()
	if n := nextBatch(t, batches); n > 2 { // two are held, and four may come of the first request
		t.Errorf("the second request is for %d, want at most 2: all must fit into the window", n)
	}
}
