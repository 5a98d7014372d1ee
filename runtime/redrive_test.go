package runtime_test

import (
	"context"
	"database/sql"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
)

// redriven is a dead letter on its way back.
func redriven(t *testing.T, dead *message.Message, hops int) *message.Message {
	t.Helper()
	record, err := poison.Parse(dead)
	if err != nil {
		t.Fatal(err)
	}
	m, err := (&poison.Redrive{Kind: poison.KindRedrive, Hops: hops, Record: record}).Message(0)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A message fails for good, the handler is mended, and the dead letter is sent to the consumer's redrive topic, twice: it
// takes effect once, in the consumer that had failed alone, as the message that it was.
func TestRedrivenMessageTakesEffectOnceInItsConsumerAlone(t *testing.T) {
	store := openStore(t)
	var mended atomic.Bool
	var others atomic.Int64
	got := make(chan string, 10)
	b := newBench(t, nil)
	billing := b.rt.Consumer("billing", "orders")
	runtime.HandleTx(billing, "order.placed", store, func(ctx context.Context, tx *sql.Tx, o order) error {
		if !mended.Load() {
			return classify.Permanent(errBroken)
		}
		got <- event.MessageID(ctx)
		_, err := tx.ExecContext(ctx, `INSERT INTO effects (id) VALUES (?)`, o.ID)
		return err
	})
	runtime.Handle(b.rt.Consumer("mails", "orders"), "order.placed", func(context.Context, order) error {
		others.Add(1)
		return nil
	})
	b.start()
	b.publish("orders", placed(t, "1"))
	dead := b.dead("orders", 1)[0]
	mended.Store(true)
	b.publish(poison.RedriveTopic("billing"), redriven(t, dead, 1), redriven(t, dead, 1))
	b.eventually("both redrives are settled", func() bool {
		s := billing.Stats()
		return s.Effects == 1 && s.Duplicates == 1
	})
	b.mustStop()
	if ids, want := effects(t, store), []string{"1"}; !slices.Equal(ids, want) {
		t.Errorf("effects %v, want %v", ids, want)
	}
	if id, want := <-got, dead.Metadata[event.MetaFrozenID]; id != want || want == "" {
		t.Errorf("redriven under the id %q, want the frozen one, %q", id, want)
	}
	if n := others.Load(); n != 1 {
		t.Errorf("the other consumer ran %d times, want once", n)
	}
}

// What fails again is a dead letter of its first topic again, and says how often it has died.
func TestRedrivenMessageThatFailsAgainCountsItsDeaths(t *testing.T) {
	b := newBench(t, nil)
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(context.Context, order) error {
		return classify.Permanent(errBroken)
	})
	b.start()
	b.publish("orders", placed(t, "1"))
	dead := b.dead("orders", 1)[0]
	b.publish(poison.RedriveTopic("billing"), redriven(t, dead, 1))
	again, err := poison.Parse(b.dead("orders", 1)[0])
	if err != nil {
		t.Fatal(err)
	}
	if again.Deaths != 2 || again.Hops != 1 || again.Topic != "orders" {
		t.Errorf("deaths %d, hops %d, topic %q; want 2, 1, orders", again.Deaths, again.Hops, again.Topic)
	}
	b.mustStop()
}

// Anybody can write to a topic: what is on a redrive topic and no redrive is poison, and blocks nothing.
func TestForeignMessageOnARedriveTopicIsDeadLettered(t *testing.T) {
	b := newBench(t, nil)
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(context.Context, order) error { return nil })
	b.start()
	topic := poison.RedriveTopic("billing")
	b.publish(topic, message.NewMessage("x", []byte("x")))
	if got := b.dead(topic, 1)[0]; string(got.Payload) != "x" {
		t.Errorf("dead letter %q, want the bytes that came", got.Payload)
	}
	b.mustStop()
}

// recording notes what is subscribed to.
type recording struct {
	brokers.Broker
	topics chan string
}

func (r recording) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	r.topics <- s.Topic
	return r.Broker.Subscriber(s)
}

// registering is a broker that wants to know its consumers.
type registering struct {
	recording
	known map[string][]string
}

func (r registering) Register(_ context.Context, topic string, consumers ...string) error {
	if len(r.topics) == 0 {
		return errBroken // nobody was opened yet
	}
	r.known[topic] = consumers
	return nil
}

// Of two new consumers of a topic with messages the first took them all, for the broker did not know of the second.
func TestAllConsumersOfATopicAreRegisteredAtOnce(t *testing.T) {
	known := map[string][]string{}
	b := newBench(t, func(c *runtime.Config) {
		c.Broker = registering{recording{c.Broker, make(chan string, 10)}, known}
	})
	for _, name := range []string{"billing", "mails"} {
		runtime.Handle(b.rt.Consumer(name, "orders"), "order.placed", func(context.Context, order) error { return nil })
	}
	b.start()
	<-b.rt.Running()
	b.mustStop()
	if got, want := known["orders"], []string{"billing", "mails"}; !slices.Equal(got, want) {
		t.Errorf("registered at orders: %v, want %v", got, want)
	}
	if got, want := known["mails.REDRIVE"], []string{"mails.REDRIVE"}; !slices.Equal(got, want) {
		t.Errorf("registered at mails.REDRIVE: %v, want %v", got, want)
	}
}

func TestRedriveCanBeSwitchedOff(t *testing.T) {
	for _, tt := range []struct {
		redrive runtime.Redrive
		want    []string
	}{
		{"", []string{"orders", "billing.REDRIVE"}},
		{runtime.RedriveOff, []string{"orders"}},
	} {
		t.Run(string(tt.redrive), func(t *testing.T) {
			topics := make(chan string, 10)
			b := newBench(t, func(c *runtime.Config) {
				c.Redrive = tt.redrive
				c.Broker = recording{c.Broker, topics}
			})
			runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(context.Context, order) error { return nil })
			b.start()
			<-b.rt.Running()
			b.mustStop()
			close(topics)
			var got []string
			for topic := range topics {
				got = append(got, topic)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("subscribed to %v, want %v", got, tt.want)
			}
		})
	}
}
