package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/classify"
)

const wait = 15 * time.Second

func logTo(tb testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(tb.Output(), nil)) }

func admin(tb testing.TB, b *embedded.Broker) natsjs.JetStream {
	tb.Helper()
	js, err := natsjs.New(b.Conn())
	if err != nil {
		tb.Fatal(err)
	}
	return js
}

// A connection is lost, or the server restarts, while messages are published and handled. Nothing that was confirmed
// may be lost, and nothing may come that nobody has published (AMQP's stock adapter delivers an empty phantom).
func TestServerRestartLosesNothing(t *testing.T) {
	dir := t.TempDir()
	start := func(listen string) *embedded.Server {
		s, err := embedded.Start(embedded.Config{Dir: dir, Listen: listen, Logger: logTo(t)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	server := start("127.0.0.1:0")
	address := strings.TrimPrefix(server.URL(), "nats://")
	for _, double := range []bool{false, true} {
		t.Run(fmt.Sprintf("double ack %v", double), func(t *testing.T) {
			b, err := jetstream.New(jetstream.Config{
				URL: server.URL(), Logger: logTo(t), DoubleAck: double, AckWait: time.Second, PublishTimeout: 2 * time.Second,
				Options: []nats.Option{nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0)},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			topic := fmt.Sprintf("restart.%v", double)
			_, in := adaptertest.Subscribe(t, b, "c", topic, 16)
			pub, err := b.Publisher()
			if err != nil {
				t.Fatal(err)
			}
			const n = 300
			confirmed := make(chan int, n)
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() {
				defer close(confirmed)
				for i := range n {
					for pub.Publish(topic, adaptertest.Numbered("key", i, 1)...) != nil {
						if t.Context().Err() != nil {
							return
						}
					}
					confirmed <- i
				}
			})
			seen := make(map[string]bool)
			limit := time.After(2 * wait)
			for len(seen) < n {
				select {
				case m, open := <-in:
					if !open {
						t.Fatal("the channel is closed by a restart")
					}
					i, err := strconv.Atoi(string(m.Payload))
					if err != nil || i < 0 || i >= n {
						t.Fatalf("message %q %q came, which nobody has published", m.UUID, m.Payload)
					}
					if !seen[string(m.Payload)] && len(seen) == n/3 {
						if err := server.Close(); err != nil {
							t.Fatal(err)
						}
						server = start(address)
					}
					seen[string(m.Payload)] = true
					m.Ack()
				case <-limit:
					t.Fatalf("received %d of %d messages in %v", len(seen), n, 2*wait)
				}
			}
		})
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
}

// A process is killed with deliveries 0 to 2 un-acked. The server keeps them for AckWait and would send 3 and 4, of the same
// key, to the next process meanwhile: 3 4 ... 0 1 2, half a minute later.
func TestCrashedMembersDeliveriesComeFirst(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	conn, err := nats.Connect("", nats.InProcessServer(b.Server()))
	if err != nil {
		t.Fatal(err)
	}
	crashing, err := jetstream.New(jetstream.Config{Conn: conn, Logger: logTo(t)})
	if err != nil {
		t.Fatal(err)
	}
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 3)...)
	_, in := adaptertest.Subscribe(t, crashing, "c", "orders", 10)
	for range 3 {
		adaptertest.Next(t, in)
	}
	conn.Close() // it can tell the server nothing any more
	for range in {
	}
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 3, 2)...)

	begin := time.Now()
	_, in = adaptertest.Subscribe(t, b, "c", "orders", 10)
	for i := range 5 {
		m := adaptertest.Next(t, in)
		if want := strconv.Itoa(i); string(m.Payload) != want {
			t.Errorf("message %d is %s, want %s", i, m.Payload, want)
		}
		// The server may have sent 3 and 4 to the dead connection too.
		if got := brokers.DeliveryOf(m.Context()).Count; i < 3 && got != 2 {
			t.Errorf("message %s: Delivery.Count is %d, want 2", m.Payload, got)
		}
		m.Ack()
	}
	if took := time.Since(begin); took > jetstream.DefaultAckWait/2 {
		t.Errorf("the takeover took %v", took)
	}
	c, err := admin(t, b).Consumer(t.Context(), "orders", "c")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.CachedInfo().Config.AckWait; got != jetstream.DefaultAckWait {
		t.Errorf("the durable's AckWait is %v after the takeover, want %v", got, jetstream.DefaultAckWait)
	}
	if err := crashing.Close(); err != nil {
		t.Errorf("Close of the crashed broker: %v", err)
	}
}

// A member that lives keeps its deliveries when another one starts.
func TestLivingMembersDeliveriesAreLeftAlone(t *testing.T) {
	b := newBroker(t, jetstream.Config{MaxAckPending: 10})
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 4)...)
	_, one := adaptertest.Subscribe(t, b, "c", "orders", 2)
	held := []*message.Message{adaptertest.Next(t, one), adaptertest.Next(t, one)}
	_, two := adaptertest.Subscribe(t, b, "c", "orders", 2)
	for _, want := range []string{"2", "3"} {
		if m := adaptertest.Next(t, two); string(m.Payload) != want || brokers.DeliveryOf(m.Context()).Count != 1 {
			t.Errorf("the second member got %s (%+v), want the first delivery of %s", m.Payload, brokers.DeliveryOf(m.Context()), want)
		}
	}
	for _, m := range held {
		if m.Context().Err() != nil {
			t.Errorf("message %s was taken away from a living member", m.Payload)
		}
	}
}

// watermill-nats lets prefetched messages run out of their AckWait in a buffer: 20 messages of 150 ms with an AckWait of 1 s
// became 42 deliveries.
func TestPrefetchDoesNotBurnAckWait(t *testing.T) {
	b := newBroker(t, jetstream.Config{AckWait: 300 * time.Millisecond})
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 20)...)
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 20)
	for range 20 {
		m := adaptertest.Next(t, in)
		<-time.After(50 * time.Millisecond) // a handler at work, one message at a time
		m.Ack()
		<-m.Context().Done()
	}
	if err := b.Conn().FlushTimeout(wait); err != nil {
		t.Fatal(err)
	}
	c, err := admin(t, b).Consumer(t.Context(), "orders", "c")
	if err != nil {
		t.Fatal(err)
	}
	if i := c.CachedInfo(); i.Delivered.Consumer != 20 || i.NumAckPending != 0 {
		t.Errorf("20 messages became %d deliveries, and %d are un-acked", i.Delivered.Consumer, i.NumAckPending)
	}
}

// A member that ends gives what it holds to those that go on, and does not leave it to AckWait.
func TestEndingMemberGivesItsDeliveriesToTheOthers(t *testing.T) {
	b := newBroker(t, jetstream.Config{MaxAckPending: 10})
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 3)...)
	ending, one := adaptertest.Subscribe(t, b, "c", "orders", 3)
	for range 3 {
		adaptertest.Next(t, one)
	}
	_, two := adaptertest.Subscribe(t, b, "c", "orders", 3)
	if err := ending.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		m := adaptertest.Next(t, two) // AckWait is longer than next waits
		if want := strconv.Itoa(i); string(m.Payload) != want || brokers.DeliveryOf(m.Context()).Count != 2 {
			t.Errorf("received %s (%+v), want the second delivery of %s", m.Payload, brokers.DeliveryOf(m.Context()), want)
		}
		m.Ack()
	}
}

func TestNackDelayGrows(t *testing.T) {
	b := newBroker(t, jetstream.Config{NackDelay: 40 * time.Millisecond, MaxNackDelay: 100 * time.Millisecond})
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 1)...)
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 1)
	m := adaptertest.Next(t, in)
	for i, want := range []time.Duration{40 * time.Millisecond, 80 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond} {
		begin := time.Now()
		m.Nack()
		m = adaptertest.Next(t, in)
		if took := time.Since(begin); took < want {
			t.Errorf("nack %d: the message came again after %v, want at least %v", i+1, took, want)
		}
	}
	m.Ack()
}

// The server loses patience with a delivery that is held, since no heartbeat has reached it, and sends it again. The handler is
// still at work: the same message must not run twice at once, and the ack must count.
func TestRedeliveryOfAHeldDeliveryIsNotHandedOver(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 1)...)
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 10)
	m := adaptertest.Next(t, in)
	js := admin(t, b)
	c, err := js.Consumer(t.Context(), "orders", "c")
	if err != nil {
		t.Fatal(err)
	}
	config := c.CachedInfo().Config
	config.AckWait = 50 * time.Millisecond // the heartbeats come every 10 s
	if _, err := js.UpdateConsumer(t.Context(), "orders", config); err != nil {
		t.Fatal(err)
	}
	select {
	case again := <-in:
		t.Fatalf("message %s was handed over again while it was held: %+v", again.Payload, brokers.DeliveryOf(again.Context()))
	case <-time.After(500 * time.Millisecond):
	}
	if i, err := c.Info(t.Context()); err != nil || i.NumRedelivered == 0 {
		t.Fatalf("the server has not delivered again: %+v, %v", i, err)
	}
	m.Ack()
	select {
	case <-m.Context().Done():
	case <-time.After(wait):
		t.Fatal("the message's context has not ended with its ack")
	}
	adaptertest.Eventually(t, func() (bool, string) { // the server takes acks in a goroutine of its own
		i, err := c.Info(t.Context())
		return err == nil && i.NumAckPending == 0, fmt.Sprintf("the server does not know of the ack: %+v, %v", i, err)
	})
}

// The operator deletes a durable, or its stream. The subscription cannot go on; it must end, and say so, rather than wait for
// ever.
func TestDeletedDurableEndsTheSubscription(t *testing.T) {
	for _, tt := range []struct {
		name   string
		remove func(context.Context, natsjs.JetStream) error
	}{
		{"durable", func(ctx context.Context, js natsjs.JetStream) error { return js.DeleteConsumer(ctx, "orders", "c") }},
		{"stream", func(ctx context.Context, js natsjs.JetStream) error { return js.DeleteStream(ctx, "orders") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBroker(t, jetstream.Config{})
			adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 1)...)
			_, in := adaptertest.Subscribe(t, b, "c", "orders", 10)
			held := adaptertest.Next(t, in)
			if err := tt.remove(t.Context(), admin(t, b)); err != nil {
				t.Fatal(err)
			}
			select {
			case m, open := <-in:
				if open {
					t.Errorf("message %s came", m.Payload)
				}
			case <-time.After(wait):
				t.Fatalf("the channel is not closed in %v", wait)
			}
			if held.Context().Err() == nil {
				t.Error("the context of a held message has not ended")
			}
		})
	}
}

// nats.go's own consumers take a stored message without a payload and with a header Status for a word of the server: it
// never arrives, and comes back for ever.
func TestStoredStatusHeaderIsAMessage(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 1)...)
	for _, status := range []string{"404", "409", "503", "100"} {
		m := &nats.Msg{Subject: "orders", Header: nats.Header{"Status": {status}, "Description": {"Consumer Deleted"}}}
		if _, err := b.Conn().RequestMsg(m, wait); err != nil {
			t.Fatal(err)
		}
	}
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 1, 1)...)
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 10)
	for _, want := range []string{"", "404", "409", "503", "100", ""} {
		m := adaptertest.Next(t, in)
		if got := m.Metadata["Status"]; got != want {
			t.Errorf("metadata Status is %q, want %q", got, want)
		}
		m.Ack()
	}
}

// Metadata of a foreign message are copied to its dead letter. Nats-Rollup would then empty the stream of the dead letters.
func TestMetadataCannotCommandTheServer(t *testing.T) {
	b := newBroker(t, jetstream.Config{Declare: func(_ string, c *natsjs.StreamConfig) { c.AllowRollup, c.AllowMsgTTL = true, true }})
	commands := message.Metadata{
		"Nats-Rollup": "all", "Nats-TTL": "1s", "Nats-Msg-Id": "same", "Nats-Expected-Stream": "other",
		"nats-rollup": "sub", "Nats-Expected-Last-Sequence": "77",
	}
	for i := range 3 {
		m := message.NewMessage("id", []byte(strconv.Itoa(i)))
		for k, v := range commands {
			m.Metadata[k] = v
		}
		adaptertest.Publish(t, b, "orders", m)
	}
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 10)
	for i := range 3 {
		m := adaptertest.Next(t, in)
		if want := strconv.Itoa(i); string(m.Payload) != want {
			t.Errorf("message %d is %s, want %s", i, m.Payload, want)
		}
		for k, v := range commands {
			if m.Metadata[k] != v {
				t.Errorf("metadata %q is %q, want %q", k, m.Metadata[k], v)
			}
		}
		m.Ack()
	}
}

// D7: a record that is too large can never be stored; trying again for ever is no answer.
func TestTooLargeIsPermanent(t *testing.T) {
	b := newBroker(t, jetstream.Config{Declare: func(topic string, c *natsjs.StreamConfig) {
		if topic == "small" {
			c.MaxMsgSize = 100
		}
	}})
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	headers := message.NewMessage("headers", nil)
	headers.Metadata["stack"] = strings.Repeat("x", 70<<10)
	for _, tt := range []struct {
		topic string
		m     *message.Message
	}{
		{"orders", message.NewMessage("payload", make([]byte, 2<<20))},
		{"orders", headers},
		{"small", message.NewMessage("small", make([]byte, 200))},
	} {
		err := pub.Publish(tt.topic, tt.m)
		if err == nil {
			t.Errorf("%s: Publish gave no error", tt.m.UUID)
			continue
		}
		if r := (*classify.Classifier)(nil).Classify(err); r.Verdict != classify.VerdictPoison {
			t.Errorf("%s: %v is classified %v, want poison", tt.m.UUID, err, r.Verdict)
		}
		if !strings.Contains(err.Error(), tt.m.UUID) || !strings.Contains(err.Error(), tt.topic) {
			t.Errorf("the error does not name message %q and topic %q: %v", tt.m.UUID, tt.topic, err)
		}
	}
}

// A batch of one key fails in the middle. If what follows were stored already, the second try would put it before the one
// that failed.
func TestFailedPublishKeepsTheKeysOrder(t *testing.T) {
	b := newBroker(t, jetstream.Config{Declare: func(_ string, c *natsjs.StreamConfig) { c.MaxMsgSize = 500 }})
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	batch := adaptertest.Numbered("key", 0, 4)
	batch[1].Payload = make([]byte, 1000)
	if err := pub.Publish("orders", batch...); err == nil || !strings.Contains(err.Error(), "key-1") {
		t.Fatalf("Publish gave %v, want an error that names id-1", err)
	}
	batch[1].Payload = []byte("1")
	if err := pub.Publish("orders", batch[1:]...); err != nil {
		t.Fatal(err)
	}
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 10)
	for i := range 4 {
		m := adaptertest.Next(t, in)
		if want := strconv.Itoa(i); string(m.Payload) != want {
			t.Errorf("message %d is %s, want %s", i, m.Payload, want)
		}
		m.Ack()
	}
}

func TestFullStreamFailsPublishAndDropsNothing(t *testing.T) {
	b := newBroker(t, jetstream.Config{MaxBytes: 4000})
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	stored := 0
	for stored < 100 && pub.Publish("orders", adaptertest.Numbered("key", stored, 1)...) == nil {
		stored++
	}
	if stored == 100 {
		t.Fatal("100 messages fit into 4,000 bytes")
	}
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 10)
	for i := range stored {
		m := adaptertest.Next(t, in)
		if want := strconv.Itoa(i); string(m.Payload) != want {
			t.Fatalf("message %d is %s, want %s", i, m.Payload, want)
		}
		m.Ack()
	}
}

// With the id as Nats-Msg-Id, the second dead letter of one delivery within two minutes would be dropped by the server.
func TestEqualIDsAreDifferentMessagesUnlessAskedFor(t *testing.T) {
	for _, tt := range []struct {
		name string
		id   func(string, *message.Message) string
		want int
	}{
		{"default", nil, 2},
		{"MsgID", func(_ string, m *message.Message) string { return m.UUID }, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBroker(t, jetstream.Config{MsgID: tt.id})
			for range 2 {
				adaptertest.Publish(t, b, "orders", message.NewMessage("same", nil))
			}
			s, err := admin(t, b).Stream(t.Context(), "orders")
			if err != nil {
				t.Fatal(err)
			}
			if got := int(s.CachedInfo().State.Msgs); got != tt.want {
				t.Errorf("the stream has %d messages, want %d", got, tt.want)
			}
		})
	}
}

func TestTopicsThatAreNoSubjectsAreRefused(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{
		"", "a b", "a\n", "a.*", "a.>", ".a", "a.", "a..b", "$JS.API.INFO", "_INBOX.x", "\xff", strings.Repeat("x", 300),
	} {
		err := pub.Publish(topic, message.NewMessage("id", nil))
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("topic %q", topic)) {
			t.Errorf("Publish to topic %q gave %v, want an error that names it", topic, err)
		}
		if topic == "" {
			continue // allowed in a Subscription
		}
		if _, err := b.Subscriber(brokers.Subscription{Consumer: "c", Topic: topic}); err == nil {
			t.Errorf("Subscriber of topic %q gave no error", topic)
		}
	}
	for _, topic := range []string{"github.webhooks", "orders.DLT", "käse/brot", "a-b_c", "0"} {
		adaptertest.Publish(t, b, topic, message.NewMessage("id", nil))
		_, in := adaptertest.Subscribe(t, b, "billing.orders", topic, 1)
		adaptertest.Next(t, in).Ack()
	}
	if _, err := b.Subscriber(brokers.Subscription{Consumer: "a b"}); err == nil {
		t.Error("a consumer named \"a b\" gave no error")
	}
}

// Two names that NATS would write the same way must not share a stream or a durable: each would get a part of the other's
// messages.
func TestNamesThatCollideAreRefused(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	adaptertest.Publish(t, b, "a.b", adaptertest.Numbered("key", 0, 1)...)
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	if err := pub.Publish("a_b", adaptertest.Numbered("key", 0, 1)...); err == nil || !strings.Contains(err.Error(), "a.b") {
		t.Errorf("Publish to topic a_b gave %v, want an error that names a.b", err)
	}
	adaptertest.Subscribe(t, b, "c.d", "a.b", 1)
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "c_d", Topic: "a.b"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sub.Subscribe(t.Context(), "a.b"); err == nil || !strings.Contains(err.Error(), "c.d") {
		t.Errorf("Subscribe of consumer c_d gave %v, want an error that names c.d", err)
	}
}

func TestExistingStreamOfManySubjectsIsUsed(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	js := admin(t, b)
	if _, err := js.CreateStream(t.Context(), natsjs.StreamConfig{Name: "EVENTS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	adaptertest.Publish(t, b, "orders.placed", adaptertest.Numbered("key", 0, 2)...)
	adaptertest.Publish(t, b, "orders.cancelled", adaptertest.Numbered("key", 10, 2)...)
	_, placed := adaptertest.Subscribe(t, b, "billing", "orders.placed", 10)
	_, cancelled := adaptertest.Subscribe(t, b, "billing", "orders.cancelled", 10)
	for i := range 2 {
		for in, want := range map[<-chan *message.Message]int{placed: i, cancelled: 10 + i} {
			m := adaptertest.Next(t, in)
			if string(m.Payload) != strconv.Itoa(want) {
				t.Errorf("received %s, want %d", m.Payload, want)
			}
			m.Ack()
		}
	}
}

func TestCheckOnlyMakesNothing(t *testing.T) {
	b := newBroker(t, jetstream.Config{CheckOnly: true})
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	if err := pub.Publish("orders", adaptertest.Numbered("key", 0, 1)...); !errors.Is(err, natsjs.ErrStreamNotFound) {
		t.Errorf("Publish without a stream gave %v", err)
	}
	js := admin(t, b)
	if _, err := js.CreateStream(t.Context(), natsjs.StreamConfig{Name: "orders", Subjects: []string{"orders"}}); err != nil {
		t.Fatal(err)
	}
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 1)...)
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "c", Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sub.Subscribe(t.Context(), "orders"); !errors.Is(err, natsjs.ErrConsumerNotFound) {
		t.Errorf("Subscribe without a durable gave %v", err)
	}
	for _, tt := range []struct {
		name   string
		config natsjs.ConsumerConfig
		want   string
	}{
		{"max deliver", natsjs.ConsumerConfig{AckPolicy: natsjs.AckExplicitPolicy, MaxDeliver: 5}, "MaxDeliver is 5"},
		{"ack policy", natsjs.ConsumerConfig{AckPolicy: natsjs.AckAllPolicy}, "AckPolicy"},
		{"filter", natsjs.ConsumerConfig{AckPolicy: natsjs.AckExplicitPolicy, FilterSubject: "orders.x"}, "filters"},
		{"fit", natsjs.ConsumerConfig{AckPolicy: natsjs.AckExplicitPolicy}, ""},
	} {
		tt.config.Durable = "c"
		if tt.config.FilterSubject != "" {
			s, err := js.UpdateStream(t.Context(), natsjs.StreamConfig{Name: "orders", Subjects: []string{"orders", "orders.x"}})
			if err != nil {
				t.Fatal(err)
			}
			_ = s
			tt.config.Durable = "c-orders"
		}
		if _, err := js.CreateConsumer(t.Context(), "orders", tt.config); err != nil {
			t.Fatal(err)
		}
		_, err := sub.Subscribe(t.Context(), "orders")
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: Subscribe gave %v, want %q", tt.name, err, tt.want)
		}
		if err := js.DeleteConsumer(t.Context(), "orders", tt.config.Durable); err != nil {
			t.Fatal(err)
		}
		if tt.config.FilterSubject != "" {
			if _, err := js.UpdateStream(t.Context(), natsjs.StreamConfig{Name: "orders", Subjects: []string{"orders"}}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// With DoubleAck, an ack whose message context has ended is known to the server.
func TestDoubleAckIsConfirmed(t *testing.T) {
	b := newBroker(t, jetstream.Config{DoubleAck: true})
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 1)...)
	_, in := adaptertest.Subscribe(t, b, "c", "orders", 1)
	m := adaptertest.Next(t, in)
	m.Ack()
	select {
	case <-m.Context().Done():
	case <-time.After(wait):
		t.Fatal("the ack was not confirmed")
	}
	c, err := admin(t, b).Consumer(t.Context(), "orders", "c")
	if err != nil {
		t.Fatal(err)
	}
	if i := c.CachedInfo(); i.NumAckPending != 0 || i.AckFloor.Stream != 1 {
		t.Errorf("the server has %d un-acked deliveries and an ack floor of %d, want 0 and 1", i.NumAckPending, i.AckFloor.Stream)
	}
}

func TestConfigErrorsNameTheField(t *testing.T) {
	conn := new(nats.Conn)
	for _, tt := range []struct {
		config jetstream.Config
		want   string
	}{
		{jetstream.Config{}, "URL, Conn and Server"},
		{jetstream.Config{URL: "nats://x", Conn: conn}, "more than one"},
		{jetstream.Config{Conn: conn, Options: []nats.Option{nats.Name("x")}}, "Config.Options"},
		{jetstream.Config{Conn: conn, Replicas: 6}, "Config.Replicas is 6"},
		{jetstream.Config{Conn: conn, MaxAge: -2}, "Config.MaxAge is -2ns"},
		{jetstream.Config{Conn: conn, MaxBytes: -1}, "Config.MaxBytes is -1"},
		{jetstream.Config{Conn: conn, Window: -1}, "Config.Window is -1"},
		{jetstream.Config{Conn: conn, MaxAckPending: -1}, "Config.MaxAckPending is -1"},
		{jetstream.Config{Conn: conn, AckWait: time.Millisecond}, "Config.AckWait is 1ms"},
		{jetstream.Config{Conn: conn, NackDelay: -1}, "Config.NackDelay is -1ns"},
		{jetstream.Config{Conn: conn, NackDelay: time.Second, MaxNackDelay: 1}, "Config.MaxNackDelay is 1ns"},
		{jetstream.Config{Conn: conn, PublishTimeout: -1}, "Config.PublishTimeout is -1ns"},
		{jetstream.Config{Conn: conn, CloseTimeout: -1}, "Config.CloseTimeout is -1ns"},
	} {
		if _, err := jetstream.New(tt.config); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New gave %v, want an error with %q", err, tt.want)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "nats://" + listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := jetstream.New(jetstream.Config{URL: url}); err == nil || !strings.Contains(err.Error(), url) {
		t.Errorf("New without a server gave %v, want an error that names %s", err, url)
	}
}

// The address that cannot be reached, or parsed, was in the error as it had been given.
func TestErrorsHaveNoPasswords(t *testing.T) {
	for _, url := range []string{
		"nats://user:secret@127.0.0.1:1",
		"nats://secret@127.0.0.1:1", // a token
		"nats://127.0.0.1:1, user:secret@127.0.0.1:2",
		"nats://user:secret%@127.0.0.1:1",
		"nats://user:x/secret@127.0.0.1:1",
		"nats://127.0.0.1:1#secret@127.0.0.1:1",
	} {
		b, err := jetstream.New(jetstream.Config{URL: url, Logger: logTo(t)})
		if err == nil {
			t.Errorf("New with %s gave no error", url)
			_ = b.Close() // the test has failed anyway
			continue
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("New with %s gave %q: it tells the secret", url, err)
		}
	}
}
