package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/runtime"
)

// stockAMQP is Watermill's own adapter for RabbitMQ behind the runtime, with the settings that lose no message. What it
// cannot do: it delivers one un-acked message of a consumer at a time, whatever the prefetch count; it waits for the confirm of each
// message before it sends the next; while a message is un-acked it does not see that its subscription was ended, so that a stop
// can take 5 s longer, until the runtime closes it; it counts no deliveries, delays none, and requeues at once what is nacked; what was published before
// a topic's first consumer stays in the queue "topic.unrouted", for an operator; and it wants the server to be there when it starts.
// brokers/amqp is the one to use. closeBroker closes what the runtime does not own.
func stockAMQP(url string) (broker brokers.Broker, closeBroker func(*error), err error) {
	config := func(consumer string) amqp.Config {
		c := amqp.NewDurablePubSubConfig(url, amqp.GenerateQueueNameTopicNameWithSuffix(consumer))
		c.Marshaler = amqpMessage{}
		c.TopologyBuilder = &amqpTopology{}
		c.Publish.ConfirmDelivery = true // off by default: then a message that is lost on the way is an error of nobody
		c.Queue.Arguments = amqp091.Table{
			// Replicated, and counted towards a limit of 20 deliveries, from RabbitMQ 4.0 on, which drops the message.
			amqp091.QueueTypeArg: amqp091.QueueTypeQuorum,
			"x-delivery-limit":   math.MaxInt32,
			// One process at a time: else two share the messages of a key.
			amqp091.SingleActiveConsumerArg: true,
		}
		return c
	}
	pub, err := amqp.NewPublisher(config("none"), watermill.NopLogger{})
	if err != nil {
		return nil, nil, err
	}
	closeBroker = func(err *error) { *err = errors.Join(*err, pub.Close()) }
	broker, err = runtime.Watermill(runtime.WatermillConfig{
		Publisher: pub,
		Subscriber: func(s brokers.Subscription) (message.Subscriber, error) {
			return amqp.NewSubscriber(config(s.Consumer), watermill.NopLogger{})
		},
		Capabilities: brokers.Capabilities{
			System:     "rabbitmq",
			Ordering:   brokers.OrderingTopic,
			MaxUnacked: 1,
			Patience:   30 * time.Minute, // the server's consumer_timeout
			FanOut:     true,
		},
	})
	return broker, closeBroker, err
}

// amqpTopology is the default one, but for messages that no queue is bound to get, such as dead letters that nobody reads. A fanout
// exchange drops those, and confirms them. Here a queue keeps them.
type amqpTopology struct {
	amqp.DefaultTopologyBuilder
}

func (b *amqpTopology) BuildTopology(ch *amqp091.Channel, p amqp.BuildTopologyParams, c amqp.Config, log watermill.LoggerAdapter) error {
	if err := b.ExchangeDeclare(ch, p.ExchangeName, c); err != nil {
		return err
	}
	return b.DefaultTopologyBuilder.BuildTopology(ch, p, withUnrouted(p.ExchangeName, c), log)
}

func (b *amqpTopology) ExchangeDeclare(ch *amqp091.Channel, name string, c amqp.Config) error {
	c = withUnrouted(name, c)
	unrouted := name + ".unrouted"
	if err := ch.ExchangeDeclare(unrouted, amqp091.ExchangeFanout, true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare(unrouted, true, false, false, false, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}); err != nil {
		return err
	}
	if err := ch.QueueBind(unrouted, "", unrouted, false, nil); err != nil {
		return err
	}
	return b.DefaultTopologyBuilder.ExchangeDeclare(ch, name, c)
}

func withUnrouted(exchange string, c amqp.Config) amqp.Config {
	c.Exchange.Arguments = amqp091.Table{"alternate-exchange": exchange + ".unrouted"}
	return c
}

// amqpMessage is the default marshaler, but for messages that it fails on, those with a header that is no string: the adapter requeues
// them, gets them again at once, and so on. Here such headers are text.
type amqpMessage struct {
	amqp.DefaultMarshaler
}

func (amqpMessage) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if d.Acknowledger == nil {
		return nil, errors.New("the connection was lost") // the adapter takes the end of the deliveries for an empty one
	}
	uuid, _ := d.Headers[amqp.DefaultMessageUUIDHeaderKey].(string)
	m := message.NewMessage(cmp.Or(uuid, d.MessageId), d.Body)
	for k, v := range d.Headers {
		if k != amqp.DefaultMessageUUIDHeaderKey {
			m.Metadata[k] = fmt.Sprint(v)
		}
	}
	return m, nil
}
