package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/brokers"
)

var _ brokers.Reader = (*Broker)(nil)

// readIdle is how long a read waits for the server.
const readIdle = 10 * time.Second

// noPartition is the partition of a stream.
const noPartition = -1

// Read implements [brokers.Reader], with an ordered consumer that the server forgets when the read ends. A stream has one partition, -1,
// whose offsets are its sequence numbers.
func (b *Broker) Read(ctx context.Context, topic string, r brokers.Range, fn func(*message.Message) error) error {
	if r.Partitions != nil && !slices.Contains(r.Partitions, noPartition) {
		return nil
	}
	stream, end, err := b.end(ctx, topic)
	if err != nil {
		return fmt.Errorf("jetstream: read topic %q: %w", topic, err)
	}
	if to, ok := r.To[noPartition]; ok {
		end = min(end, to)
	}
	config := jetstream.OrderedConsumerConfig{FilterSubjects: []string{topic}, DeliverPolicy: jetstream.DeliverAllPolicy}
	from, given := r.From[noPartition]
	switch {
	case given && from > 0:
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, uint64(from)
	case !given && !r.Since.IsZero():
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &r.Since
	}
	if from >= end {
		return nil
	}
	consumer, err := stream.OrderedConsumer(ctx, config)
	if err != nil {
		return fmt.Errorf("jetstream: read topic %q: %w", topic, err)
	}
	name := ""
	if info := consumer.CachedInfo(); info != nil {
		name = info.Name
		if info.NumPending == 0 {
			b.drop(ctx, stream, name)
			return nil
		}
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("jetstream: read topic %q: %w", topic, err)
	}
	defer b.drop(ctx, stream, name)
	defer messages.Stop()
	for {
		in, err := next(ctx, messages)
		if err != nil {
			return fmt.Errorf("jetstream: read topic %q: %w", topic, err)
		}
		meta, err := in.Metadata()
		if err != nil {
			return fmt.Errorf("jetstream: read topic %q: %w", topic, err)
		}
		if int64(meta.Sequence.Stream) >= end {
			return nil
		}
		if err := fn(readMessage(ctx, topic, stream, meta, in)); err != nil {
			return err
		}
		if meta.NumPending == 0 || int64(meta.Sequence.Stream) >= end-1 {
			return nil
		}
	}
}

// next waits for a message, for at most readIdle.
func next(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	wait, cancel := context.WithTimeout(ctx, readIdle)
	defer cancel()
	in, err := messages.Next(jetstream.NextContext(wait))
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case wait.Err() != nil:
		return nil, fmt.Errorf("the server sent nothing for %v: %w", readIdle, err)
	}
	return in, err
}

// drop deletes the consumer of a read now; the server would do so by itself, later.
func (b *Broker) drop(ctx context.Context, stream jetstream.Stream, name string) {
	if name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.config.CloseTimeout)
	defer cancel()
	if err := stream.DeleteConsumer(ctx, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		b.config.Logger.DebugContext(ctx, "jetstream: forget the consumer of a read", "error", err)
	}
}

func readMessage(ctx context.Context, topic string, stream jetstream.Stream, meta *jetstream.MsgMetadata, in jetstream.Msg) *message.Message {
	d := &brokers.Delivery{
		Topic:       topic,
		Incarnation: incarnationOf(stream),
		Partition:   noPartition,
		Offset:      int64(meta.Sequence.Stream),
		Time:        meta.Timestamp,
	}
	var m *message.Message
	m, d.Headers, d.DecodeError = decode(&nats.Msg{Subject: in.Subject(), Header: in.Headers(), Data: in.Data()})
	m.SetContext(brokers.WithDelivery(ctx, d))
	return m
}

// incarnationOf is what a subscription gives its deliveries: see subscribe.
func incarnationOf(stream jetstream.Stream) string {
	return stream.CachedInfo().Created.UTC().Format(time.RFC3339Nano)
}

// end returns the stream of a topic and the sequence number behind the topic's last message.
func (b *Broker) end(ctx context.Context, topic string) (jetstream.Stream, int64, error) {
	if err := checkTopic(topic); err != nil {
		return nil, 0, err
	}
	name, err := b.js.StreamNameBySubject(ctx, topic)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, 0, brokers.ErrNoTopic
	}
	if err != nil {
		return nil, 0, err
	}
	stream, err := b.js.Stream(ctx, name)
	if err != nil {
		return nil, 0, err
	}
	last, err := stream.GetLastMsgForSubject(ctx, topic)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return stream, int64(stream.CachedInfo().State.LastSeq) + 1, nil
	}
	if err != nil {
		return nil, 0, err
	}
	return stream, int64(last.Sequence) + 1, nil
}

// Ends implements [brokers.Reader]. It is behind what is now the last message of the topic.
func (b *Broker) Ends(ctx context.Context, topic string) (map[int32]int64, error) {
	_, end, err := b.end(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("jetstream: end of topic %q: %w", topic, err)
	}
	return map[int32]int64{noPartition: end}, nil
}
