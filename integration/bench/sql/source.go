package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

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
	return &subscriber{source: s, window: int64(max(1, sub.Window))}, nil
}

func (*source) Publisher() (message.Publisher, error) { return unpublished{}, nil }
func (*source) Close() error                          { return nil }

// unpublished refuses what the runtime publishes by itself: dead letters, of which there are to be none.
type unpublished struct{}

func (unpublished) Publish(topic string, msgs ...*message.Message) error {
	return fmt.Errorf("%d messages for %s: %w", len(msgs), topic, errors.ErrUnsupported)
}
func (unpublished) Close() error { return nil }

// subscriber is taken from by calls, as one of the adapters that read ahead is.
type subscriber struct {
	source *source
	window int64
	ended  sync.WaitGroup
}

var _ brokers.Puller = (*subscriber)(nil)

// Subscribe is for the redrive topic, whose messages have to be restored: it is empty.
func (s *subscriber) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	s.ended.Go(func() {
		<-ctx.Done()
		close(out)
	})
	return out, nil
}

func (s *subscriber) Pull(ctx context.Context, topic string) (brokers.Pull, error) {
	p := &pull{subscriber: s, ctx: ctx, topic: topic, ready: make(chan struct{}, 1)}
	p.ready <- struct{}{}
	s.ended.Go(func() {
		<-ctx.Done()
		close(p.ready)
	})
	return p, nil
}

// Close waits until the subscription, whose context has ended, has.
func (s *subscriber) Close() error {
	s.ended.Wait()
	return nil
}

// pull is one subscription.
type pull struct {
	*subscriber
	ctx   context.Context // of its deliveries
	topic string
	ready chan struct{}
	last  atomic.Int64 // message that was delivered
	held  atomic.Int64 // not settled
}

func (p *pull) Ready() <-chan struct{} { return p.ready }

// Next needs one caller at a time: the intake is.
func (p *pull) Next() *message.Message {
	i := p.last.Load()
	if i == int64(p.source.n) || p.held.Load() == p.window || p.ctx.Err() != nil {
		return nil
	}
	p.last.Add(1)
	p.held.Add(1)
	return p.message(i + 1)
}

func (p *pull) settled() { p.held.Add(-1) }

// message is the i-th, as an adapter makes it of what it received: event.New's metadata, the key is an account.
func (p *pull) message(i int64) *message.Message {
	number := strconv.FormatInt(i, 10)
	id := idPrefix + zeros[len(number):] + number
	account := strconv.AppendInt(nil, i%keys, 10)
	payload := make([]byte, 0, 64)
	payload = append(payload, `{"account":`...)
	payload = append(payload, account...)
	payload = append(payload, `,"amount":1}`...)
	msg := message.NewMessage(id, payload)
	msg.Metadata = message.Metadata{
		event.MetaSpecVersion: "1.0", event.MetaID: id, event.MetaSource: "/bench/shop", event.MetaType: "posted",
		event.MetaTime: "2026-01-01T00:00:00Z", event.MetaContentType: "application/json", event.MetaPartitionKey: string(account),
	}
	msg.SetContext(brokers.WithDelivery(p.ctx, &brokers.Delivery{
		Topic: p.topic, Partition: -1, Offset: i, Key: account, Release: p.settled, Settled: p.settled,
	}))
	return msg
}

const (
	idPrefix = "019358e6-43c1-7b8e-8000-"
	zeros    = "000000000000" // as many digits as an id ends with
)
