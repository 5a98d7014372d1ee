package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stocknats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/runtime"
)

// natsStream holds all subjects of the service: the adapter would make a stream for each topic, named as the
// topic, and a stream's name cannot have the dot of "orders.DLT".
const natsStream = "billing"

// natsAckWait is after which time an un-acked message comes again. The adapter has no sign of life: a handler that takes longer runs
// twice at once, and what a dead process held waits as long.
const natsAckWait = 30 * time.Second

// stockNATS is Watermill's own adapter for JetStream behind the runtime. It delivers one un-acked message of a
// consumer at a time: brokers/jetstream is the one to use. closeBroker closes what the runtime does not own.
func stockNATS(url string, ackWait time.Duration) (broker brokers.Broker, closeBroker func(*error), err error) {
	conn, err := nats.Connect(url)
	if err != nil {
		return nil, nil, err
	}
	js, err := conn.JetStream()
	if err == nil {
		_, err = js.AddStream(&nats.StreamConfig{Name: natsStream, Subjects: []string{"orders", "orders.>", "billing.>"}})
	}
	var pub *stocknats.Publisher
	if err == nil {
		pub, err = stocknats.NewPublisherWithNatsConn(conn, stocknats.PublisherPublishConfig{
			Marshaler: &stocknats.NATSMarshaler{}, SubjectCalculator: stocknats.DefaultSubjectCalculator,
		}, watermill.NopLogger{})
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	closeBroker = func(err *error) { *err = errors.Join(*err, pub.Close()) } // which closes the connection
	broker, err = runtime.Watermill(runtime.WatermillConfig{
		Publisher:  pub,
		Subscriber: func(s brokers.Subscription) (message.Subscriber, error) { return natsSubscriber(url, js, s, ackWait) },
		Capabilities: brokers.Capabilities{
			System:     "nats",
			Ordering:   brokers.OrderingTopic,
			MaxUnacked: 1,
			Patience:   ackWait,
			FanOut:     true,
			Replays:    true,
		},
	})
	return broker, closeBroker, err
}

// natsSubscriber subscribes to a durable that it makes first: one that the client library makes is deleted, with all that it
// knows, when the subscription ends.
func natsSubscriber(url string, js nats.JetStreamContext, s brokers.Subscription, ackWait time.Duration) (message.Subscriber, error) {
	durable := strings.ReplaceAll(s.Consumer, ".", "_")
	_, err := js.ConsumerInfo(natsStream, durable)
	if errors.Is(err, nats.ErrConsumerNotFound) {
		_, err = js.AddConsumer(natsStream, &nats.ConsumerConfig{
			Durable: durable, FilterSubject: s.Topic, DeliverSubject: nats.NewInbox(), DeliverGroup: durable,
			DeliverPolicy: nats.DeliverAllPolicy, AckPolicy: nats.AckExplicitPolicy, AckWait: ackWait,
			// More would wait in the client, and their AckWait with them; and a nacked message would come after them.
			MaxAckPending: 1,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("durable %q: %w", durable, err)
	}
	return stocknats.NewSubscriber(stocknats.SubscriberConfig{
		URL:              url, // a connection of its own: Close closes it
		QueueGroupPrefix: durable,
		AckWaitTimeout:   ackWait,
		Unmarshaler:      natsMessage{},
		JetStream: stocknats.JetStreamConfig{
			DurablePrefix:    durable,
			SubscribeOptions: []nats.SubOpt{nats.Bind(natsStream, durable), nats.ManualAck()},
		},
	}, watermill.NopLogger{})
}

// natsMessage is the default unmarshaler, but for a header with several values: the message would stay un-acked, and come again for
// ever, alone. Here the first value counts.
type natsMessage struct{}

func (natsMessage) Unmarshal(in *nats.Msg) (*message.Message, error) {
	m := message.NewMessage(in.Header.Get(stocknats.WatermillUUIDHdr), in.Data)
	for k, values := range in.Header {
		if k != stocknats.WatermillUUIDHdr && len(values) > 0 {
			m.Metadata[k] = values[0]
		}
	}
	return m, nil
}
