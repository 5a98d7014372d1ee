package ordering_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/ordering"
)

// One goroutine runs a whole lane. A stage that finds the values or the state of the first message in the context of a later one would
// ack or dead-letter the wrong one.
func TestSuccessorHasTheRoutersValuesAndItsOwnState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		intake := newIntake(t, ordering.Config{Concurrency: 1, Successors: true})
		src := newSource()
		sent := src.push("orders", "k", "1", "2", "3")
		router := message.NewDefaultRouter(watermill.NopLogger{})
		decorated := decorator(t, router, intake)
		calls := 0
		router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) { calls++; return h(msg) }
		}, intake.Middleware)
		var got []string
		router.AddConsumerHandler("handler", "orders", decorated(src), func(msg *message.Message) error {
			synctest.Wait() // the others wait in the lane by then
			ctx, cancel := context.WithCancelCause(msg.Context())
			cancel(errTest)
			f := flight.From(ctx)
			got = append(got, fmt.Sprint(msg.UUID, " ", message.HandlerNameFromCtx(ctx), " ", message.SubscribeTopicFromCtx(ctx), " ",
				f.Original.UUID, " ", brokers.DeliveryOf(ctx) == f.Delivery, " ", context.Cause(ctx)))
			return nil
		})
		start(t, router)
		time.Sleep(time.Second)
		if err := router.Close(); err != nil {
			t.Fatal(err)
		}
		for i, d := range sent {
			want := fmt.Sprintf("%s handler orders %s true %v", d.id, d.id, errTest)
			if len(got) <= i || got[i] != want {
				t.Errorf("messages are %q, want message %d to be %q", got, i, want)
			}
			wantSettled(t, "acked", d)
		}
		if calls != 1 {
			t.Errorf("the router saw %d messages, want 1 with 2 successors", calls)
		}
	})
}

// Two topics share an intake and have a handler each. A goroutine that goes on with whatever is ready runs a message of one topic in the
// handler of the other.
func TestSuccessorIsOfTheSameSubscription(t *testing.T) {
	const n = 500
	intake := newIntake(t, ordering.Config{Concurrency: 2, Successors: true})
	src := newSource()
	router := message.NewDefaultRouter(watermill.NopLogger{})
	decorated := decorator(t, router, intake)
	router.AddMiddleware(intake.Middleware)
	var ran sync.WaitGroup
	for _, topic := range []string{"a", "b"} {
		src.push(topic, "k", ids("m", n)...)
		ran.Add(n)
		router.AddConsumerHandler("of "+topic, topic, decorated(src), func(msg *message.Message) error {
			defer ran.Done()
			d := flight.From(msg.Context())
			if name := message.HandlerNameFromCtx(msg.Context()); d.Topic != topic || name != "of "+topic {
				t.Errorf("a message of %s runs in the handler of %s, named %s", d.Topic, topic, name)
			}
			return nil
		})
	}
	start(t, router)
	ran.Wait()
	if err := router.Close(); err != nil {
		t.Fatal(err)
	}
}

// A router logs and counts a failure by the message it gave. That of a successor ends the succession: the next ones are given to the
// router again, and nothing waits for ever.
func TestSuccessionEndsWithAFailure(t *testing.T) {
	const n = 200
	intake := newIntake(t, ordering.Config{Concurrency: 3, Successors: true})
	src := newSource()
	sent := src.push("orders", "k", ids("m", n)...)
	var ran sync.WaitGroup
	ran.Add(n)
	i := 0
	router := runRouter(t, intake, src, func(*message.Message) error {
		defer ran.Done()
		i++ // one key: one after another
		switch {
		case i%7 == 0:
			return errTest
		case i%11 == 0:
			panic("boom")
		}
		return nil
	})
	ran.Wait()
	if err := router.Close(); err != nil {
		t.Fatal(err)
	}
	for i, d := range sent {
		want := "acked"
		if (i+1)%7 == 0 || (i+1)%11 == 0 {
			want = "nacked"
		}
		wantSettled(t, want, d)
	}
}
