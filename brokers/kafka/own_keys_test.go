package kafka_test

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/runtime"
)

// The records are those of payments P1, P1, P2, all of one account, which is the key of the lanes. With the budget of P1 used up its second
// record waited in the adapter, and P2 went ahead of it in the lane of the account.
func TestLanesOfAnotherKeyThanTheRecordsKeepTheirOrder(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fill(t, seeds, "topic", 0, 3, func(i int) string { return key(max(i, 1)) }) // key1, key1, key2
	config := quick(seeds)
	config.KeyBudget = 1
	config.Logger = slog.New(slog.NewTextHandler(output(t), nil))
	b := open(t, config)
	rt, err := runtime.New(runtime.Config{Service: "test", Broker: b, Logger: config.Logger})
	if err != nil {
		t.Fatal(err)
	}
	account := func(*message.Message) string { return "account" }
	goOn, handled := make(chan struct{}), make(chan int, 3)
	runtime.HandleMessage(rt.ConsumerWith(runtime.ConsumerConfig{Name: "c", Topic: "topic", Key: account}), runtime.AnyType,
		func(m *message.Message) error {
			n, err := strconv.Atoi(string(m.Payload))
			if n == 0 {
				<-goOn
			}
			handled <- n
			return err
		})
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- rt.Run(ctx) }()
	eventually(t, "another one has gone into the lane behind the first", 15*time.Second, func() bool {
		p := b.Progress("c", "topic")
		return len(p) == 1 && p[0].InFlight >= 2
	})
	close(goOn)
	var order []int
	for range 3 {
		select {
		case n := <-handled:
			order = append(order, n)
		case <-time.After(15 * time.Second):
			t.Fatalf("after %v nothing came in 15 s", order)
		}
	}
	cancel()
	if err := <-ran; err != nil {
		t.Errorf("Run returned %v, want nil", err)
	}
	if want := []int{0, 1, 2}; !slices.Equal(order, want) {
		t.Errorf("handled in the order %v, want %v", order, want)
	}
}

// A delivery was given back and waits to come again. Those of other keys went ahead of it, also where the lanes are of another key.
func TestNothingOvertakesAReturnedDeliveryOfOwnKeys(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fill(t, seeds, "topic", 0, 3, key)
	config := quick(seeds)
	config.NackDelay, config.MaxNackDelay = 300*time.Millisecond, 300*time.Millisecond
	b := open(t, config)
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "c", Topic: "topic", Window: 2, OwnKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	in, err := sub.Subscribe(t.Context(), "topic")
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{t, sub, in}
	held := r.take(2)
	held[0].Nack()
	eventually(t, "the first is back", 5*time.Second, func() bool { return b.Stats()[0].Returned == 1 })
	held[1].Ack()
	again := r.next()
	again.Ack()
	if got := offsets([]*message.Message{again, r.next()}); !slices.Equal(got, []int64{0, 2}) {
		t.Errorf("offsets %v came, want 0 again and then 2", got)
	}
}
