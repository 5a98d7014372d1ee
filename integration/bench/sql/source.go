package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
)

// source is a broker whose topic has n messages, each made when it is delivered: what is measured is neither a broker
// nor the collector of garbage among all that waits in one.
type source struct{ n int }

func (*source) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{System: "bench", Ordering: brokers.OrderingTopic, Releases: true, FanOut: true}
}

func (s *source) Subscriber(sub brokers.Subscription) (message.Subscriber, error) {
	return &subscriber{source: s, room: make(chan struct{}, max(1, sub.Window))}, nil
}

func (*source) Publisher() (message.Publisher, error) { return unpublished{}, nil }
func (*source) Close() error                          { return nil }

// unpublished refuses what the runtime publishes by itself: dead letters, of which there are to be none.
type unpublished struct{}

func (unpublished) Publish(topic string, msgs ...*message.Message) error {
	return fmt.Errorf("%d messages for %s: %w", len(msgs), topic, errors.ErrUnsupported)
}
func (unpublished) Close() error { return nil }

type subscriber struct {
	source *source
	room   chan struct{} // holds as many as are not settled
	ended  sync.WaitGroup
}

func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	s.ended.Go(func() {
		defer close(out)
		for i := 1; i <= s.source.n; i++ {
			select {
			case s.room <- struct{}{}:
			case <-ctx.Done():
				return
			}
			select {
			case out <- s.message(ctx, topic, i):
			case <-ctx.Done():
				return
			}
		}
		<-ctx.Done()
	})
	return out, nil
}

// Close waits until the subscription, whose context has ended, has.
func (s *subscriber) Close() error {
	s.ended.Wait()
	return nil
}

// message is the i-th, as an adapter makes it of what it received: event.New's metadata, the key is an account.
func (s *subscriber) message(ctx context.Context, topic string, i int) *message.Message {
	account := strconv.Itoa(i % keys)
	id := fmt.Sprintf("019358e6-43c1-7b8e-8000-%012d", i)
	msg := message.NewMessage(id, fmt.Appendf(nil, `{"account":%s,"amount":1}`, account))
	msg.Metadata = message.Metadata{
		event.MetaSpecVersion: "1.0", event.MetaID: id, event.MetaSource: "/bench/shop", event.MetaType: "posted",
		event.MetaTime: "2026-01-01T00:00:00Z", event.MetaContentType: "application/json", event.MetaPartitionKey: account,
	}
	msg.SetContext(brokers.WithDelivery(ctx, &brokers.Delivery{
		Topic: topic, Partition: -1, Offset: int64(i), Key: []byte(account),
		Release: func() {}, Settled: func() { <-s.room },
	}))
	return msg
}
