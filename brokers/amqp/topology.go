package amqp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cenkalti/backoff/v4"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/classify"
)

// deliveryLimit is how often a quorum queue delivers a message before it drops it: for all practical purposes never. With no limit at
// all, RabbitMQ before 4.0 puts what is requeued at the end of the queue; with one it comes next, as it must. From 4.0
// on the default is 20.
const deliveryLimit = int64(math.MaxInt32)

// operatorsLimit is the same of a queue of the operator's, as far as we know: the default from RabbitMQ 4.0 on.
const operatorsLimit = 20

// What is on its way at once of a backlog: so many messages, and no more after so many bytes.
const (
	handOverBatch = 256
	handOverBytes = 8 << 20
)

// errUnrouted says that messages of a topic wait to be handed over.
var errUnrouted = errors.New("messages wait that no queue was bound to get")

// declareTopic makes the exchange of a topic, and the queue of what is published while no queue is bound to it.
func declareTopic(ch *amqp091.Channel, topic string) error {
	name := unroutedName(topic)
	if err := ch.ExchangeDeclare(name, amqp091.ExchangeFanout, true, false, false, false, nil); err != nil {
		return fmt.Errorf("declare exchange %q: %w", name, err)
	}
	if _, err := ch.QueueDeclare(name, true, false, false, false, amqp091.Table{
		amqp091.QueueTypeArg: amqp091.QueueTypeQuorum, "x-delivery-limit": deliveryLimit,
	}); err != nil {
		return fmt.Errorf("declare queue %q: %w", name, err)
	}
	if err := ch.QueueBind(name, "", name, false, nil); err != nil {
		return fmt.Errorf("bind queue %q: %w", name, err)
	}
	if err := ch.ExchangeDeclare(topic, amqp091.ExchangeFanout, true, false, false, false, amqp091.Table{"alternate-exchange": name}); err != nil {
		return fmt.Errorf("declare exchange %q: %w", topic, err)
	}
	return nil
}

// declareQueue makes the queue of a consumer.
func (b *Broker) declareQueue(ch *amqp091.Channel, queue string) error {
	args := amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum, "x-delivery-limit": deliveryLimit}
	if !b.config.CompetingConsumers {
		args[amqp091.SingleActiveConsumerArg] = true
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
		return fmt.Errorf("declare queue %q: %w", queue, err)
	}
	return nil
}

func bind(ch *amqp091.Channel, queue, topic string) error {
	if err := ch.QueueBind(queue, "", topic, false, nil); err != nil {
		return fmt.Errorf("bind queue %q to exchange %q: %w", queue, topic, err)
	}
	return nil
}

func checkExchange(ch *amqp091.Channel, topic string) error {
	if err := ch.ExchangeDeclarePassive(topic, amqp091.ExchangeFanout, true, false, false, false, nil); err != nil {
		return fmt.Errorf("check exchange %q: %w", topic, err)
	}
	return nil
}

func checkQueue(ch *amqp091.Channel, queue string) (amqp091.Queue, error) {
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		err = fmt.Errorf("check queue %q: %w", queue, err)
	}
	return q, err
}

// rebind binds a queue again, since the bindings go with an exchange that is deleted, and nobody is told. If messages wait it returns how
// many, and does not bind: what follows must not overtake them.
func rebind(ch *amqp091.Channel, topic, queue string) (waiting int, err error) {
	q, err := checkQueue(ch, unroutedName(topic))
	if err != nil || q.Messages > 0 {
		return q.Messages, err
	}
	return 0, bind(ch, queue, topic)
}

// isMissing tells whether the server says that a queue or an exchange is not there.
func isMissing(err error) bool {
	e, ok := errors.AsType[*amqp091.Error](err)
	return ok && e.Code == amqp091.NotFound
}

// ensureTopic makes or checks the exchange of a topic, once.
func (b *Broker) ensureTopic(ctx context.Context, topic string) error {
	if err := checkTopic(topic); err != nil {
		return classify.Permanent(err)
	}
	b.mu.Lock()
	there := b.topics[topic]
	b.mu.Unlock()
	if there {
		return nil
	}
	err := b.publishing.onChannel(ctx, func(ch *amqp091.Channel) error {
		if b.config.Topology == Check {
			return checkExchange(ch, topic)
		}
		return declareTopic(ch, topic)
	})
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topics[topic] = true
	return nil
}

// forgetTopic has the exchange of a topic made again before the next message.
func (b *Broker) forgetTopic(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.topics, topic)
}

// restore makes or checks again what a subscription needs. Where something is missing, or messages wait, it registers again: the queue is not
// bound before they were handed over.
func (n *subscription) restore(ctx context.Context) error {
	declares := n.broker.config.Topology == Declare
	err := n.broker.consuming.onChannel(ctx, func(ch *amqp091.Channel) error {
		if _, err := checkQueue(ch, n.queue); err != nil || !declares {
			return err
		}
		waiting, err := rebind(ch, n.topic, n.queue)
		if err == nil && waiting > 0 {
			err = errUnrouted
		}
		return err
	})
	if declares && (isMissing(err) || errors.Is(err, errUnrouted)) {
		return n.registerAgain(ctx)
	}
	return err
}

// registerAgain registers all consumers of the topic that this process has: what waits has come to none of them.
func (n *subscription) registerAgain(ctx context.Context) error {
	b, consumers := n.broker, []string{n.consumer}
	b.mu.Lock()
	for other := range b.reads {
		if other.topic == n.topic {
			consumers = append(consumers, other.consumer)
		}
	}
	b.mu.Unlock()
	slices.Sort(consumers)
	return b.register(ctx, n.topic, slices.Compact(consumers))
}

// Register makes the queues of consumers of a topic. Queues that are the first to be bound to the topic also get what was
// published before, in order, and before what comes later; only what is published in the very moment of their binding, some
// milliseconds, can be out of order, and then may come as late as a subscription next asks for its lag. Should the process end
// in the middle of that, the rest goes to whoever registers, or asks, next. It waits for other processes that register with the
// topic, until ctx ends.
func (b *Broker) Register(ctx context.Context, topic string, consumers ...string) error {
	if err := b.register(ctx, topic, consumers); err != nil {
		return fmt.Errorf("amqp: register consumers %q of topic %q: %w", consumers, topic, err)
	}
	return nil
}

func (b *Broker) register(ctx context.Context, topic string, consumers []string) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	queues := make([]string, len(consumers))
	for i, c := range consumers {
		queues[i] = b.config.QueueName(c, topic)
		if err := checkName("queue", queues[i], maxName); err != nil {
			return err
		}
	}
	if len(queues) == 0 {
		return nil
	}
	// Within one connection the server's lock has no effect.
	select {
	case b.registering <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-b.registering }()
	if b.config.Topology == Check {
		return b.checkQueues(ctx, queues)
	}
	ch, err := b.lock(ctx, topic)
	if err != nil {
		return err
	}
	defer b.unlock(ch, topic)
	if err := declareTopic(ch, topic); err != nil {
		return err
	}
	for _, q := range queues {
		if err := b.declareQueue(ch, q); err != nil {
			return err
		}
	}
	// What was there before, then what came before the bindings.
	if err := b.handOver(ctx, ch, topic, queues); err != nil {
		return err
	}
	for _, q := range queues {
		if err := bind(ch, q, topic); err != nil {
			return err
		}
	}
	return b.handOver(ctx, ch, topic, queues)
}

func (b *Broker) checkQueues(ctx context.Context, queues []string) error {
	return b.consuming.onChannel(ctx, func(ch *amqp091.Channel) error {
		for _, q := range queues {
			if _, err := checkQueue(ch, q); err != nil {
				return err
			}
		}
		return nil
	})
}

func lockName(topic string) string { return shortKey(lockPrefix + topic) }

// lock returns a channel on which topic is locked against other processes: by a queue that belongs to the connection, and ends with it.
func (b *Broker) lock(ctx context.Context, topic string) (*amqp091.Channel, error) {
	retry := backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstDelay/5), backoff.WithMaxInterval(maxDelay/5), backoff.WithMaxElapsedTime(0))
	var held *amqp091.Channel
	err := backoff.Retry(func() error {
		ch, err := b.consuming.channel(ctx)
		if err != nil {
			return backoff.Permanent(err)
		}
		_, err = ch.QueueDeclare(lockName(topic), false, false, true, false, nil)
		if err == nil {
			held = ch
			return nil
		}
		_ = ch.Close() // the server has closed it
		err = fmt.Errorf("lock the topic: %w", err)
		if e, ok := errors.AsType[*amqp091.Error](err); !ok || e.Code != amqp091.ResourceLocked {
			return backoff.Permanent(err)
		}
		return err // another process registers
	}, backoff.WithContext(retry, ctx))
	return held, err
}

// unlock closes the channel, which gives back what was not acked, and ends the lock. If it cannot, since the connection was lost, the lock
// has ended with that.
func (b *Broker) unlock(ch *amqp091.Channel, topic string) {
	_ = ch.Close()
	if conn, err := b.consuming.current(); conn == nil || err != nil {
		return // and no other connection is made for this
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.config.CloseTimeout)
	defer cancel()
	err := b.consuming.onChannel(ctx, func(ch *amqp091.Channel) error {
		_, err := ch.QueueDelete(lockName(topic), false, false, false)
		return err
	})
	if err != nil {
		b.config.Logger.Warn("amqp: could not unlock a topic; the end of the connection does", "topic", topic, "error", err)
	}
}

// handOver moves what nobody was bound to get to queues, to each of them.
func (b *Broker) handOver(ctx context.Context, ch *amqp091.Channel, topic string, queues []string) error {
	from := unroutedName(topic)
	for {
		batch, err := gather(func() (amqp091.Delivery, bool, error) { return ch.Get(from, false) })
		if err != nil {
			return fmt.Errorf("get from queue %q: %w", from, err)
		}
		if len(batch) == 0 {
			return nil
		}
		letters := make([]letter, 0, len(batch)*len(queues))
		for i := range batch {
			for _, q := range queues {
				letters = append(letters, letter{key: q, content: republish(&batch[i])})
			}
		}
		if err := errors.Join(b.internal.send(ctx, letters)...); err != nil {
			return fmt.Errorf("hand over messages of queue %q: %w", from, err)
		}
		if err := ch.Ack(batch[len(batch)-1].DeliveryTag, true); err != nil {
			return fmt.Errorf("ack messages of queue %q: %w", from, err)
		}
	}
}

// gather gets what is handed over at once; nothing if there is nothing left.
func gather(get func() (d amqp091.Delivery, there bool, err error)) (batch []amqp091.Delivery, err error) {
	for size := 0; len(batch) < handOverBatch && size < handOverBytes; {
		d, there, err := get()
		if err != nil || !there {
			return batch, err
		}
		batch, size = append(batch, d), size+len(d.Body)
	}
	return batch, nil
}

// republish returns d as it was published.
func republish(d *amqp091.Delivery) amqp091.Publishing {
	return amqp091.Publishing{
		Headers:         d.Headers,
		ContentType:     d.ContentType,
		ContentEncoding: d.ContentEncoding,
		DeliveryMode:    amqp091.Persistent,
		Priority:        d.Priority,
		CorrelationId:   d.CorrelationId,
		ReplyTo:         d.ReplyTo,
		MessageId:       d.MessageId,
		Timestamp:       d.Timestamp,
		Type:            d.Type,
		AppId:           d.AppId,
		Body:            d.Body,
	}
}
