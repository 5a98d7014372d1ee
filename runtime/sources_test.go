package runtime_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/runtime"
)

// halfOpen is a broker that opens no redrive topic. It counts what is open.
type halfOpen struct {
	brokers.Broker
	opened, closed atomic.Int32
}

func (h *halfOpen) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	if strings.HasSuffix(s.Topic, ".REDRIVE") {
		return nil, errBroken
	}
	sub, err := h.Broker.Subscriber(s)
	h.opened.Add(1)
	return countedSubscriber{sub, h}, err
}

type countedSubscriber struct {
	message.Subscriber
	broker *halfOpen
}

func (c countedSubscriber) Close() error {
	c.broker.closed.Add(1)
	return c.Subscriber.Close()
}

// The subscriber of the consumer's topic was open already when that of its redrive topic could not be opened: a connection that nobody closed.
func TestStartThatFailsClosesWhatItHasOpened(t *testing.T) {
	var broker halfOpen
	b := newBench(t, func(c *runtime.Config) {
		broker.Broker = c.Broker
		c.Broker = &broker
	})
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", handleNothing)
	wantParts(t, b.rt.Run(t.Context()), "consumer billing", "billing.REDRIVE", "broken")
	if opened, closed := broker.opened.Load(), broker.closed.Load(); opened != 1 || closed != 1 {
		t.Errorf("%d subscribers were opened and %d closed, want 1 and 1", opened, closed)
	}
}

// "a" and "a.REDRIVE" are two handlers of one name to the router, which panicked.
func TestConsumerNamesThatAreTheRuntimesOwnAreRefused(t *testing.T) {
	for _, suffix := range []string{".REDRIVE", ".PARKED"} {
		b := newBench(t, nil)
		for _, name := range []string{"a", "a" + suffix} {
			runtime.Handle(b.rt.Consumer(name, "orders"), "order.placed", handleNothing)
		}
		wantParts(t, b.rt.Run(t.Context()), `Name is "a`+suffix+`"`, suffix)
	}
}
