package amqp_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/internal/testserver"
)

// K10: a producer is deployed first, and a dead letter is written before anybody reads the topic. A fanout exchange without a queue drops
// that. Here all replicas of two consumers begin at once, and both get all of it, once, in order.
func TestWhatWasPublishedBeforeGoesToTheFirstConsumers(t *testing.T) {
	topic := rand.Text()
	const n = 600 // more than are handed over at once
	first := open(t, amqp.Config{})
	adaptertest.Publish(t, first, topic, adaptertest.Numbered("", 0, n)...)
	var ended sync.WaitGroup
	for range 3 {
		b := open(t, amqp.Config{})
		ended.Go(func() {
			if err := b.Register(t.Context(), topic, "a", "b"); err != nil {
				t.Error(err)
			}
		})
	}
	ended.Wait()
	adaptertest.Publish(t, first, topic, adaptertest.Numbered("", n, 10)...)
	for _, consumer := range []string{"a", "b"} {
		_, in := adaptertest.Subscribe(t, first, consumer, topic, 50)
		if got, want := adaptertest.Ack(t, in, n+10), adaptertest.Numbers(0, n+10); !slices.Equal(got, want) {
			t.Errorf("consumer %s got %q, want them in order", consumer, got)
		}
		adaptertest.Quiet(t, in, quiet)
	}
	// A later one gets what comes.
	_, in := adaptertest.Subscribe(t, first, "later", topic, 50)
	adaptertest.Publish(t, first, topic, adaptertest.Numbered("", n+10, 1)...)
	if got, want := adaptertest.Ack(t, in, 1), adaptertest.Numbers(n+10, 1); !slices.Equal(got, want) {
		t.Errorf("a later consumer got %q, want %q", got, want)
	}
}

// The first consumer begins while others publish: nothing is lost, nothing comes twice.
func TestFirstConsumerBeginsWhileOthersPublish(t *testing.T) {
	topic := rand.Text()
	b := open(t, amqp.Config{})
	pub := adaptertest.Publisher(t, b)
	const n = 500
	half, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := range n {
			if err := pub.Publish(topic, adaptertest.Numbered("", i, 1)...); err != nil {
				t.Errorf("Publish: %v", err)
			}
			if i == n/5 {
				close(half)
			}
		}
	}()
	defer func() { <-done }()
	<-half
	_, in := adaptertest.Subscribe(t, b, "c", topic, 50)
	if got, want := sorted(adaptertest.Ack(t, in, n)), sorted(adaptertest.Numbers(0, n)); !slices.Equal(got, want) {
		t.Errorf("got %q, want each of %d once", got, n)
	}
	adaptertest.Quiet(t, in, quiet)
}

// Another process died while it had a topic locked, or is slow: who registers waits for as long as the caller does.
func TestRegisterWaitsForItsContext(t *testing.T) {
	topic := rand.Text()
	if _, err := channel(t, testserver.AMQP(t)).QueueDeclare("headrace.lock/"+topic, false, false, true, false, nil); err != nil {
		t.Fatal(err)
	}
	b := open(t, amqp.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := b.Register(ctx, topic, "c")
	if !errors.Is(err, context.DeadlineExceeded) && (err == nil || !strings.Contains(err.Error(), "lock the topic")) {
		t.Errorf("Register while the topic is locked: %v", err)
	}
}

// The active process dies: the next one goes on with what it held, in order, and nobody worked at the same time before.
func TestNextMemberGoesOnInOrder(t *testing.T) {
	topic := rand.Text()
	p, url := testserver.NewProxyOf(t, testserver.AMQP(t))
	active := open(t, amqp.Config{URLs: []string{url}})
	standby := open(t, amqp.Config{})
	_, in := adaptertest.Subscribe(t, active, "c", topic, 8)
	_, next := adaptertest.Subscribe(t, standby, "c", topic, 8)
	adaptertest.Publish(t, standby, topic, adaptertest.Numbered("", 0, 20)...)
	held := adaptertest.Take(t, in, 8)
	adaptertest.Quiet(t, next, quiet)
	held[2].Ack()
	adaptertest.Delivery(t, held[2]).Settled()
	held = append(held, adaptertest.Take(t, in, 1)...) // so the ack has arrived
	p.Down()
	want := slices.DeleteFunc(adaptertest.Numbers(0, 20), func(s string) bool { return s == "2" })
	if got := adaptertest.Ack(t, next, 19); !slices.Equal(got, want) {
		t.Errorf("the next member got %q, want %q", got, want)
	}
	for _, m := range held {
		select {
		case <-m.Context().Done():
		case <-time.After(wait):
			t.Fatalf("the context of %s goes on in the process that has lost it", m.Payload)
		}
	}
}

// A member that stops gave newer messages back at once, and those of a key behind its running one a moment later. The server delivered the newer
// ones to the same member again, and took all back by the order of these deliveries: the next member got the newer ones first.
func TestReleasedDeliveriesGoBackInOrder(t *testing.T) {
	topic := rand.Text()
	leaving, staying := open(t, amqp.Config{NackDelay: 5 * time.Millisecond, MaxNackDelay: wait}), open(t, amqp.Config{})
	sub, in := adaptertest.Subscribe(t, leaving, "c", topic, 8)
	_, next := adaptertest.Subscribe(t, staying, "c", topic, 8)
	adaptertest.Publish(t, staying, topic, adaptertest.Numbered("", 0, 20)...)
	held := adaptertest.Take(t, in, 8)
	for _, m := range held[4:] {
		adaptertest.Delivery(t, m).Release()
	}
	adaptertest.Quiet(t, in, quiet)
	for _, m := range held[:4] {
		adaptertest.Delivery(t, m).Release()
	}
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := adaptertest.Ack(t, next, 20), adaptertest.Numbers(0, 20); !slices.Equal(got, want) {
		t.Errorf("the next member got %q, want %q", got, want)
	}
}

func TestDifferentQueueIsNamedWithTheDifference(t *testing.T) {
	topic := rand.Text()
	adaptertest.Subscribe(t, open(t, amqp.Config{}), "c", topic, 1)
	b := open(t, amqp.Config{CompetingConsumers: true})
	err := b.Register(t.Context(), topic, "c")
	if err == nil || !strings.Contains(err.Error(), topic+"/c") || !strings.Contains(err.Error(), "x-single-active-consumer") {
		t.Errorf("Register of a queue that differs: %v; want its name and x-single-active-consumer", err)
	}
	err = b.Register(t.Context(), topic, "d") // it is not locked by the failure
	if err != nil {
		t.Errorf("Register after a failure: %v", err)
	}
}

// operator makes a topology of the operator's own: a topic exchange, a queue that is bound to it by a key, and that has a dead-letter
// exchange, which leads back to it.
func operator(t *testing.T, ch *amqp091.Channel, exchange, queue string) {
	t.Helper()
	dead := queue + ".dead"
	for _, err := range []error{
		ch.ExchangeDeclare(exchange, "topic", true, false, false, false, nil),
		ch.ExchangeDeclare(dead, "fanout", true, false, false, false, nil),
		second(ch.QueueDeclare(queue, true, false, false, false, amqp091.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": dead})),
		second(ch.QueueDeclare(dead, true, false, false, false, amqp091.Table{"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue})),
		ch.QueueBind(queue, "eu.#", exchange, false, nil),
		ch.QueueBind(dead, "", dead, false, nil),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, err := range []error{
			second(ch.QueueDelete(queue, false, false, false)), second(ch.QueueDelete(dead, false, false, false)),
			ch.ExchangeDelete(exchange, false, false), ch.ExchangeDelete(dead, false, false),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestCheckedTopologyIsTheOperators(t *testing.T) {
	exchange := rand.Text()
	queue := exchange + ".billing"
	ch := channel(t, testserver.AMQP(t))
	b := open(t, amqp.Config{
		Topology:   amqp.Check,
		QueueName:  func(consumer, topic string) string { return topic + "." + consumer },
		RoutingKey: func(_ string, m *message.Message) string { return m.Metadata["region"] + ".order" },
	})
	missing := func(err error, name string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), strconv.Quote(name)) || !strings.Contains(err.Error(), "NOT_FOUND") {
			t.Errorf("without a topology: %v; want an error with %q and NOT_FOUND", err, name)
		}
	}
	pub := adaptertest.Publisher(t, b)
	missing(pub.Publish(exchange, adaptertest.Numbered("", 0, 1)...), exchange)
	missing(b.Register(t.Context(), exchange, "billing"), queue)
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "billing", Topic: exchange})
	if err != nil {
		t.Fatal(err)
	}
	_, err = sub.Subscribe(t.Context(), exchange)
	missing(err, queue)

	operator(t, ch, exchange, queue)
	_, in := adaptertest.Subscribe(t, b, "billing", exchange, 4)
	messages := adaptertest.Numbered("", 0, 3)
	for i, region := range []string{"eu", "us", "eu"} {
		messages[i].Metadata["region"] = region
	}
	err = pub.Publish(exchange, messages...)
	failed, ok := errors.AsType[*brokers.PublishError](err)
	if !ok || !errors.Is(err, amqp.ErrUnroutable) || len(failed.Failed) != 1 || failed.Failed[0].UUID != "1" || !strings.Contains(err.Error(), "us.order") {
		t.Errorf("Publish of a message that no queue gets: %v; want ErrUnroutable of message 1 alone", err)
	}
	m := adaptertest.Next(t, in)
	if d := adaptertest.Delivery(t, m); d.Delay != nil {
		t.Error("Delivery.Delay is there, without queues for it")
	}
	m.Ack()
	if got := adaptertest.Ack(t, in, 1); got[0] != "2" {
		t.Errorf("got %q, want 2", got)
	}
	adaptertest.Quiet(t, in, quiet)

	// The operator's own dead-letter exchange: what it says of the message can be read.
	publishDead := func() {
		if err := ch.Publish(queue+".dead", "", true, false, amqp091.Publishing{MessageId: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	publishDead()
	m = adaptertest.Next(t, in)
	if m.Metadata["x-first-death-queue"] != queue+".dead" || m.Metadata["x-first-death-reason"] != "expired" || !strings.Contains(m.Metadata["x-death"], `"reason":"expired"`) {
		t.Errorf("metadata %v, want what the server says of its death", m.Metadata)
	}
	if !slices.ContainsFunc(adaptertest.Delivery(t, m).Headers, func(h brokers.Header) bool { return h.Key == "x-death" && h.Value[0] == 'A' }) {
		t.Errorf("headers %v, want x-death as an array", adaptertest.Delivery(t, m).Headers)
	}
	m.Ack()
}

func TestLagIsWhatIsNotSettled(t *testing.T) {
	topic := rand.Text()
	b, standby := open(t, amqp.Config{LagInterval: 20 * time.Millisecond}), open(t, amqp.Config{LagInterval: 20 * time.Millisecond})
	if n, known := b.Lag("c", topic); known {
		t.Errorf("Lag before the subscription is %d, want it not known", n)
	}
	_, in := adaptertest.Subscribe(t, b, "c", topic, 4)
	adaptertest.Subscribe(t, standby, "c", topic, 4)
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 10)...)
	lag := func(b *amqp.Broker, want int64) {
		t.Helper()
		adaptertest.Eventually(t, func() (bool, string) {
			n, known := b.Lag("c", topic)
			return known && n == want, fmt.Sprintf("Lag is %d (known: %v), want %d", n, known, want)
		})
	}
	adaptertest.Take(t, in, 4)[0].Ack()
	held := adaptertest.Next(t, in)
	lag(b, 9) // the one that was acked is settled within a scan
	lag(standby, 0)
	held.Nack() // held back, and then requeued
	lag(b, 9)
}

// A name that AMQP cannot have is an error before anything is sent, which would end the connection, and with it all that is under way.
func TestBadNamesAreErrors(t *testing.T) {
	b := open(t, amqp.Config{RoutingKey: func(string, *message.Message) string { return "" }})
	long := strings.Repeat("x", 256)
	for _, topic := range []string{"", long, "amq.x", "\xff"} {
		if err := b.Register(t.Context(), topic, "c"); err == nil {
			t.Errorf("Register with topic %.20q gave no error", topic)
		}
		if err := adaptertest.Publisher(t, b).Publish(topic, adaptertest.Numbered("", 0, 1)...); err == nil {
			t.Errorf("Publish to topic %.20q gave no error", topic)
		}
	}
	if err := b.Register(t.Context(), "topic", long); err == nil || !strings.Contains(err.Error(), "queue") {
		t.Errorf("Register of a consumer with 256 bytes: %v", err)
	}
}
