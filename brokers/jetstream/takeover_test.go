package jetstream_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
)

// replica returns a broker with a connection of its own to the server of b.
func replica(tb testing.TB, b *embedded.Broker, config jetstream.Config) *jetstream.Broker {
	tb.Helper()
	config.Server, config.Logger = b.Server(), logTo(tb)
	r, err := jetstream.New(config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := r.Close(); err != nil {
			tb.Errorf("Close of a replica: %v", err)
		}
	})
	return r
}

// crash leaves n deliveries of topic un-acked, as a process does that is killed.
func crash(tb testing.TB, b *embedded.Broker, config jetstream.Config, consumer, topic string, n int) {
	tb.Helper()
	r := replica(tb, b, config)
	_, in := adaptertest.Subscribe(tb, r, consumer, topic, n)
	for range n {
		adaptertest.Next(tb, in)
	}
	r.Conn().Close()
	for range in {
	}
}

func ackWait(tb testing.TB, b *embedded.Broker, stream, durable string) time.Duration {
	tb.Helper()
	c, err := admin(tb, b).Consumer(tb.Context(), stream, durable)
	if err != nil {
		tb.Fatal(err)
	}
	return c.CachedInfo().Config.AckWait
}

// A deployment comes back after a crash: three replicas start at once, or while one of them takes over. Each thought it was alone,
// waited for all that the dead had left, got a part, and handed over nothing for AckWait and 5 s more.
func TestReplicasThatStartTogetherAfterACrashShareWhatIsLeft(t *testing.T) {
	const left, total = 60, 100
	for _, tt := range []struct {
		gap    time.Duration
		window int
	}{
		{0, left},
		{0, left / 3},
		{time.Millisecond, left},
		{100 * time.Millisecond, left},
		{250 * time.Millisecond, left},
		{420 * time.Millisecond, left / 3},
	} {
		t.Run(fmt.Sprintf("gap %v, window %d", tt.gap, tt.window), func(t *testing.T) {
			b := newBroker(t, jetstream.Config{})
			config := jetstream.Config{MaxAckPending: left}
			adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, total)...)
			crash(t, b, config, "c", "orders", left)

			var (
				wg      sync.WaitGroup
				mu      sync.Mutex
				handled [total]int
				n       int
				done    = make(chan struct{})
			)
			for i := range 3 {
				r := replica(t, b, config)
				wg.Go(func() {
					<-time.After(time.Duration(i) * tt.gap)
					sub, err := r.Subscriber(brokers.Subscription{Consumer: "c", Topic: "orders", Window: tt.window})
					if err != nil {
						t.Error(err)
						return
					}
					in, err := sub.Subscribe(t.Context(), "orders")
					if err != nil {
						t.Error(err)
						return
					}
					last, limit := -1, time.After(wait)
					handle := func(m *message.Message) {
						id, err := strconv.Atoi(string(m.Payload))
						if err != nil {
							t.Error(err)
						}
						if id < last {
							t.Errorf("replica %d: message %d came after %d", i, id, last)
						}
						last = id
						mu.Lock()
						defer mu.Unlock()
						if handled[id]++; handled[id] > 1 {
							t.Errorf("replica %d: message %d came to two replicas", i, id)
						}
						if n++; n == total {
							close(done)
						}
					}
					var held []*message.Message
					tick := time.NewTicker(50 * time.Millisecond) // slow handlers, a window at a time
					defer tick.Stop()
					for {
						select {
						case m := <-in:
							handle(m)
							held = append(held, m)
						case <-tick.C:
							for _, m := range held {
								m.Ack()
							}
							held = nil
						case <-done:
							if last < 0 && tt.gap == 0 && tt.window < left {
								t.Errorf("replica %d: nothing came", i)
							}
							return
						case <-limit:
							t.Errorf("replica %d: not all was handled in %v", i, wait)
							return
						}
					}
				})
			}
			wg.Wait()
			if got := ackWait(t, b, "orders", "c"); got != jetstream.DefaultAckWait {
				t.Errorf("the durable's AckWait is %v afterwards, want %v", got, jetstream.DefaultAckWait)
			}
		})
	}
}

// A consumer ends and gives back what it holds, which the server then still counts as un-acked. The next start took it for what a
// crash had left: two updates of the durable and 0.2 s for each consumer.
func TestStartAfterACleanStopTakesNothingOver(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 8)...)
	sub, in := adaptertest.Subscribe(t, b, "c", "orders", 5)
	for range 5 {
		adaptertest.Next(t, in)
	}
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := admin(t, b).Consumer(t.Context(), "orders", "c")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.CachedInfo().NumAckPending; got != 5 {
		t.Fatalf("%d deliveries count as un-acked after the stop, want 5", got)
	}
	updates, err := b.Conn().SubscribeSync("$JS.API.CONSUMER.CREATE.>")
	if err != nil {
		t.Fatal(err)
	}
	_, in = adaptertest.Subscribe(t, b, "c", "orders", 5)
	for i := range 8 {
		m := adaptertest.Next(t, in)
		if want := strconv.Itoa(i); string(m.Payload) != want {
			t.Errorf("message %d is %s, want %s", i, m.Payload, want)
		}
		if got := brokers.DeliveryOf(m.Context()).Count; i < 5 && got != 2 {
			t.Errorf("message %s: Delivery.Count is %d, want 2", m.Payload, got)
		}
		m.Ack()
	}
	if err := b.Conn().FlushTimeout(wait); err != nil {
		t.Fatal(err)
	}
	if n, _, err := updates.Pending(); err != nil || n > 0 {
		t.Errorf("the durable was updated %d times (%v), want never", n, err)
	}
}

// Some members have given back what they held, and one was killed. What came back at once is not all.
func TestCrashAmongCleanStopsKeepsTheOrder(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	config := jetstream.Config{MaxAckPending: 20}
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 12)...)
	clean := replica(t, b, config)
	sub, in := adaptertest.Subscribe(t, clean, "c", "orders", 3)
	for range 3 {
		adaptertest.Next(t, in)
	}
	crash(t, b, config, "c", "orders", 4) // 3 to 6
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	_, in = adaptertest.Subscribe(t, replica(t, b, config), "c", "orders", 20)
	for i := range 12 {
		m := adaptertest.Next(t, in)
		if want := strconv.Itoa(i); string(m.Payload) != want {
			t.Errorf("message %d is %s, want %s", i, m.Payload, want)
		}
		m.Ack()
	}
}

// A member is killed while it takes over, with the AckWait of the durable at 10 ms. It was left like that if the next start found
// nothing un-acked, or set back by a start that was about to follow.
func TestAckWaitIsGivenBackAfterACrashInATakeover(t *testing.T) {
	for _, left := range []int{0, 3} {
		t.Run(strconv.Itoa(left)+" left", func(t *testing.T) {
			b := newBroker(t, jetstream.Config{})
			adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 5)...)
			crash(t, b, jetstream.Config{}, "c", "orders", 5)
			js := admin(t, b)
			c, err := js.Consumer(t.Context(), "orders", "c")
			if err != nil {
				t.Fatal(err)
			}
			acking := replica(t, b, jetstream.Config{})
			sub, in := adaptertest.Subscribe(t, acking, "c", "orders", 5)
			for range 5 - left {
				adaptertest.Next(t, in).Ack()
			}
			if err := sub.Close(); err != nil {
				t.Fatal(err)
			}
			config := c.CachedInfo().Config
			config.AckWait = 10 * time.Millisecond
			if _, err := js.UpdateConsumer(t.Context(), "orders", config); err != nil {
				t.Fatal(err)
			}
			_, in = adaptertest.Subscribe(t, b, "c", "orders", 5)
			if got := ackWait(t, b, "orders", "c"); got != jetstream.DefaultAckWait {
				t.Errorf("the durable's AckWait is %v, want %v", got, jetstream.DefaultAckWait)
			}
			for i := 5 - left; i < 5; i++ {
				m := adaptertest.Next(t, in)
				if want := strconv.Itoa(i); string(m.Payload) != want {
					t.Errorf("received %s, want %s", m.Payload, want)
				}
				m.Ack()
			}
		})
	}
}

// With CheckOnly the durable cannot be changed: what the dead held comes after AckWait, and newer messages must wait for it.
func TestCheckOnlyWaitsForCrashedMembersDeliveries(t *testing.T) {
	const patience = 500 * time.Millisecond
	b := newBroker(t, jetstream.Config{})
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 5)...)
	crash(t, b, jetstream.Config{AckWait: patience, MaxAckPending: 10}, "c", "orders", 3)
	updates, err := b.Conn().SubscribeSync("$JS.API.CONSUMER.CREATE.>")
	if err != nil {
		t.Fatal(err)
	}
	_, in := adaptertest.Subscribe(t, replica(t, b, jetstream.Config{CheckOnly: true}), "c", "orders", 10)
	for i := range 5 {
		m := adaptertest.Next(t, in)
		if want := strconv.Itoa(i); string(m.Payload) != want {
			t.Errorf("message %d is %s, want %s", i, m.Payload, want)
		}
		m.Ack()
	}
	if n, _, err := updates.Pending(); err != nil || n > 0 {
		t.Errorf("CheckOnly has updated the durable %d times (%v)", n, err)
	}
}

// Whoever comes while another member starts sees that it is there, leaves the durable alone, and waits until it runs, but not for
// ever.
func TestStartDoesNotWaitForEverForAnotherStart(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 2)...)
	config := jetstream.Config{MaxAckPending: 10}
	crash(t, b, config, "c", "orders", 1)
	js := admin(t, b)
	c, err := js.Consumer(t.Context(), "orders", "c")
	if err != nil {
		t.Fatal(err)
	}
	taken := c.CachedInfo().Config
	taken.AckWait = 10 * time.Millisecond
	if _, err := js.UpdateConsumer(t.Context(), "orders", taken); err != nil {
		t.Fatal(err)
	}
	updates, err := b.Conn().SubscribeSync("$JS.API.CONSUMER.CREATE.>")
	if err != nil {
		t.Fatal(err)
	}
	stuck, err := b.Conn().Subscribe("_HEADRACE.alive.orders.c", func(m *nats.Msg) {
		if m.Reply == "" {
			return
		}
		if n, _, err := updates.Pending(); err != nil || n > 0 {
			t.Errorf("the durable was updated %d times (%v) while another member starts", n, err)
		}
		if err := m.Respond([]byte("starting")); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, in := adaptertest.Subscribe(t, replica(t, b, config), "c", "orders", 10)
	if took := time.Since(began); took < time.Second || took > wait/2 {
		t.Errorf("the start took %v, want about 3s", took)
	}
	adaptertest.Next(t, in)
	if got := ackWait(t, b, "orders", "c"); got != jetstream.DefaultAckWait {
		t.Errorf("the durable's AckWait is %v, want %v", got, jetstream.DefaultAckWait)
	}
	if err := stuck.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
}

// A member has fetched some of what is left when it hears one that goes first. What it has must not stay with it for AckWait, and
// it must not make the server give up what the other holds.
func TestMemberThatDoesNotLeadGivesBackWhatItFetched(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	config := jetstream.Config{MaxAckPending: 20}
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 7)...)
	clean := replica(t, b, config)
	sub, in := adaptertest.Subscribe(t, clean, "c", "orders", 3)
	for range 3 {
		adaptertest.Next(t, in)
	}
	crash(t, b, config, "c", "orders", 4)
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	updates, err := b.Conn().SubscribeSync("$JS.API.CONSUMER.CREATE.>")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if err := b.Conn().Publish("_HEADRACE.alive.orders.c", nil); err != nil { // a member that runs
					t.Error(err)
				}
			}
		}
	})
	_, in = adaptertest.Subscribe(t, replica(t, b, config), "c", "orders", 20)
	close(stop)
	wg.Wait()
	for i := range 3 {
		m := adaptertest.Next(t, in) // AckWait is longer than next waits
		if want := strconv.Itoa(i); string(m.Payload) != want {
			t.Errorf("message %d is %s, want %s", i, m.Payload, want)
		}
		m.Ack()
	}
	if n, _, err := updates.Pending(); err != nil || n > 0 {
		t.Errorf("the durable was updated %d times (%v), want never", n, err)
	}
}
