package main

import (
	"context"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/integration/history"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// A consumer writes down what the tables do not show: attempts, skips, dead letters when they are stored, and acks. Effects
// are in the tables, with the time of their commit.

// record is one of this process about an event.
func (w *worker) record(kind history.Kind, id string) history.Record {
	key, _, _ := strings.Cut(id, "/")
	return history.Record{Kind: kind, Process: w.Name, Consumer: w.effects(), ID: id, Key: key}
}

// attempts writes when attempts begin and end.
func (w *worker) attempts(log *history.Log) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			id := msg.Metadata[event.MetaID]
			log.Write(w.record(history.Start, id))
			out, err := next(msg)
			if err != nil {
				log.Write(w.record(history.Failed, id))
			}
			log.Write(w.record(history.End, id))
			return out, err
		}
	}
}

// recordingStore writes which events had taken effect before.
type recordingStore struct {
	*pgxstore.Store
	w   *worker
	log *history.Log
}

func (s *recordingStore) Once(ctx context.Context, claim inbox.Claim, fn func(context.Context, pgx.Tx) error) (bool, error) {
	isNew, err := s.Store.Once(ctx, claim, fn)
	if err == nil && !isNew {
		s.log.Write(s.w.record(history.Skipped, claim.ID[strings.LastIndexByte(claim.ID, ' ')+1:])) // without the event's source
	}
	return isNew, err
}

// recordingBroker writes the acks of the consumer that is judged, and its dead letters.
type recordingBroker struct {
	brokers.Broker
	w   *worker
	log *history.Log
}

func (b recordingBroker) Register(ctx context.Context, topic string, consumers ...string) error {
	if r, ok := b.Broker.(brokers.Registrar); ok {
		return r.Register(ctx, topic, consumers...)
	}
	return nil
}

func (b recordingBroker) Publisher() (message.Publisher, error) {
	pub, err := b.Broker.Publisher()
	return recordingPublisher{pub, b.w, b.log}, err
}

func (b recordingBroker) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	sub, err := b.Broker.Subscriber(s)
	if err != nil || s.Consumer != b.w.effects() {
		return sub, err
	}
	r := recordingSubscriber{sub, b}
	if puller, ok := sub.(brokers.Puller); ok {
		return recordingPuller{r, puller}, nil
	}
	return r, nil
}

// watch makes msg's ack be written when it is settled.
func (b recordingBroker) watch(msg *message.Message) {
	known := brokers.DeliveryOf(msg.Context())
	if known == nil {
		return
	}
	d, inner, id := *known, known.Settled, msg.Metadata[event.MetaID]
	d.Settled = func() {
		select {
		case <-msg.Acked():
			b.log.Write(b.w.record(history.Ack, id))
		default:
		}
		if inner != nil {
			inner()
		}
	}
	msg.SetContext(brokers.WithDelivery(msg.Context(), &d))
	if b.w.Sabotage == ackFirst {
		b.log.Write(b.w.record(history.Ack, id))
		msg.Ack()
		if inner != nil {
			inner()
		}
	}
}

type recordingSubscriber struct {
	message.Subscriber
	b recordingBroker
}

func (s recordingSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() { // it ends with the subscription, which the runtime reads to its end
		defer close(out)
		for msg := range in {
			s.b.watch(msg)
			out <- msg
		}
	}()
	return out, nil
}

type recordingPuller struct {
	recordingSubscriber
	puller brokers.Puller
}

func (p recordingPuller) Pull(ctx context.Context, topic string) (brokers.Pull, error) {
	pull, err := p.puller.Pull(ctx, topic)
	return recordingPull{pull, p.b}, err
}

type recordingPull struct {
	brokers.Pull
	b recordingBroker
}

func (p recordingPull) Next() *message.Message {
	msg := p.Pull.Next()
	if msg != nil {
		p.b.watch(msg)
	}
	return msg
}

type recordingPublisher struct {
	message.Publisher
	w   *worker
	log *history.Log
}

func (p recordingPublisher) Publish(topic string, msgs ...*message.Message) error {
	if err := p.Publisher.Publish(topic, msgs...); err != nil {
		return err
	}
	if topic == p.w.topic()+poison.Suffix {
		for _, msg := range msgs {
			p.log.Write(p.w.record(history.Dead, msg.Metadata[event.MetaID]))
		}
	}
	return nil
}
