package runtime_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/runtime"
)

// asked keeps what its broker was asked for.
type asked struct {
	brokers.Broker
	mu  sync.Mutex
	own []string // the topics that are read with keys of the consumer's own
}

func (a *asked) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.OwnKeys {
		a.own = append(a.own, s.Topic)
	}
	return a.Broker.Subscriber(s)
}

// A broker that bounds what is un-acked of each of its keys lets others go ahead. It was not told that the lanes were of another key, so that
// they got messages in another order than that of the topic.
func TestBrokerIsToldOfKeysOfTheConsumersOwn(t *testing.T) {
	b := newBench(t, nil)
	broker := &asked{Broker: b.broker}
	rt, err := runtime.New(runtime.Config{Service: "test", Broker: broker})
	if err != nil {
		t.Fatal(err)
	}
	b.rt = rt
	handle := func(context.Context, order) error { return nil }
	runtime.Handle(rt.Consumer("plain", "orders"), "order.placed", handle)
	account := rt.ConsumerWith(runtime.ConsumerConfig{
		Name: "account", Topic: "payments", Key: func(m *message.Message) string { return m.Metadata["account"] },
	})
	runtime.Handle(account, "order.placed", handle)
	b.start()
	receiveClosed(t, rt.Running())
	b.mustStop()
	slices.Sort(broker.own)
	if want := []string{"account.REDRIVE", "payments"}; !slices.Equal(broker.own, want) {
		t.Errorf("the topics that are told to have keys of the consumer's own are %q, want %q", broker.own, want)
	}
}
