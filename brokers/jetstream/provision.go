package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// metaConsumer is the key of a durable's metadata that holds the consumer's name as the application wrote it.
const metaConsumer = "headrace_consumer"

// provision returns the stream that holds topic, making one if it may and must.
func (b *Broker) provision(ctx context.Context, topic string) (jetstream.Stream, error) {
	if err := checkTopic(topic); err != nil {
		return nil, err
	}
	name, err := b.js.StreamNameBySubject(ctx, topic)
	switch {
	case err == nil:
		s, err := b.js.Stream(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("jetstream: stream %q of topic %q: %w", name, topic, err)
		}
		return s, nil
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, fmt.Errorf("jetstream: find the stream of topic %q: %w", topic, err)
	case b.config.CheckOnly:
		return nil, fmt.Errorf("jetstream: no stream holds topic %q, and Config.CheckOnly forbids to make one: %w", topic, err)
	}
	config := jetstream.StreamConfig{
		Subjects: []string{topic},
		Replicas: b.config.Replicas,
		MaxAge:   max(b.config.MaxAge, 0),
		MaxBytes: b.config.MaxBytes,
		Discard:  jetstream.DiscardNew, // full: Publish fails, and nothing that is un-acked is dropped
		Metadata: map[string]string{"headrace_topic": topic},
	}
	if config.MaxBytes == 0 {
		config.MaxBytes = -1
	}
	if config.Name, err = assetName("topic", topic); err != nil {
		return nil, err
	}
	if b.config.Declare != nil {
		b.config.Declare(topic, &config)
		if !slices.Contains(config.Subjects, topic) {
			return nil, fmt.Errorf("jetstream: Config.Declare took topic %q out of the subjects of stream %q: %q",
				topic, config.Name, config.Subjects)
		}
	}
	s, err := b.js.CreateStream(ctx, config)
	if err == nil {
		return s, nil
	}
	// Another process may have made it meanwhile, or another topic has the name.
	if name, again := b.js.StreamNameBySubject(ctx, topic); again == nil {
		return b.js.Stream(ctx, name)
	}
	if other, again := b.js.Stream(ctx, config.Name); again == nil {
		return nil, fmt.Errorf("jetstream: topic %q needs a stream named %q, but that holds %q: use Config.Declare to name one of them otherwise",
			topic, config.Name, other.CachedInfo().Config.Subjects)
	}
	return nil, fmt.Errorf("jetstream: make stream %q for topic %q: %w", config.Name, topic, err)
}

// durable returns the durable of a consumer, making or updating it if it may and must.
func (b *Broker) durable(ctx context.Context, s jetstream.Stream, consumer, topic string, window int) (jetstream.Consumer, error) {
	stream := s.CachedInfo().Config
	name, err := durableName(stream, consumer, topic)
	if err != nil {
		return nil, err
	}
	pending := b.config.MaxAckPending
	if pending == 0 {
		pending = window
	}
	c, err := s.Consumer(ctx, name)
	if err == nil {
		return b.adopt(ctx, s, c, consumer, topic, pending)
	}
	if !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil, fmt.Errorf("jetstream: find durable %q of stream %q: %w", name, stream.Name, err)
	}
	if b.config.CheckOnly {
		return nil, fmt.Errorf("jetstream: stream %q has no durable %q for consumer %q, and Config.CheckOnly forbids to make one: %w",
			stream.Name, name, consumer, err)
	}
	c, err = s.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable:       name,
		Description:   "Headrace consumer " + consumer,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       b.config.AckWait,
		MaxAckPending: pending,
		MaxDeliver:    -1,
		FilterSubject: topic,
		Metadata:      map[string]string{metaConsumer: consumer},
	})
	if err == nil {
		return c, nil
	}
	// Another process may have made it meanwhile.
	if c, again := s.Consumer(ctx, name); again == nil {
		return b.adopt(ctx, s, c, consumer, topic, pending)
	}
	if api := (*jetstream.APIError)(nil); errors.As(err, &api) && (api.ErrorCode == codeQueueTaken || api.ErrorCode == codeQueueShared) {
		return nil, fmt.Errorf("jetstream: consumer %q of topic %q: stream %q is a work queue, and another consumer has its place: %w",
			consumer, topic, stream.Name, err)
	}
	return nil, fmt.Errorf("jetstream: make durable %q of stream %q: %w", name, stream.Name, err)
}

// What the server answers where a second consumer would read one subject of a work queue; nats.go has no names for these.
const (
	codeQueueTaken  jetstream.ErrorCode = 10099 // multiple non-filtered consumers not allowed on workqueue stream
	codeQueueShared jetstream.ErrorCode = 10100 // filtered consumer not unique on workqueue stream
)

// durableName is the name of a consumer's durable in a stream.
func durableName(stream jetstream.StreamConfig, consumer, topic string) (string, error) {
	if !slices.Equal(stream.Subjects, []string{topic}) {
		consumer += "-" + topic
	}
	return assetName("consumer", consumer)
}

// adopt checks a durable that is there, and sets what may be set.
func (b *Broker) adopt(ctx context.Context, s jetstream.Stream, c jetstream.Consumer, consumer, topic string, pending int) (jetstream.Consumer, error) {
	config := c.CachedInfo().Config
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("jetstream: durable %q of stream %q does not fit consumer %q: %s",
			config.Name, s.CachedInfo().Config.Name, consumer, fmt.Sprintf(format, args...))
	}
	filters := config.FilterSubjects
	if config.FilterSubject != "" {
		filters = append(filters, config.FilterSubject)
	}
	if len(filters) == 0 {
		filters = s.CachedInfo().Config.Subjects
	}
	owner, owned := config.Metadata[metaConsumer]
	switch {
	case owned && owner != consumer:
		return nil, refuse("it is that of consumer %q, whose name is written the same way", owner)
	case config.AckPolicy != jetstream.AckExplicitPolicy:
		return nil, refuse("its AckPolicy is %v, want explicit", config.AckPolicy)
	case config.DeliverSubject != "":
		return nil, refuse("it pushes to %q, want a pull consumer", config.DeliverSubject)
	case config.MaxDeliver > 0:
		return nil, refuse("its MaxDeliver is %d: a message would be lost after that many deliveries", config.MaxDeliver)
	case len(config.BackOff) > 0:
		return nil, refuse("it has a BackOff, which overrides AckWait")
	case !slices.Equal(filters, []string{topic}):
		return nil, refuse("it filters %q, want %q", filters, topic)
	case config.AckWait < MinAckWait && config.AckWait != expedite && b.config.CheckOnly:
		return nil, refuse("its AckWait is %v, want at least %v", config.AckWait, MinAckWait)
	}
	ackWait := b.config.AckWait
	if config.AckWait == expedite {
		ackWait = expedite // a member takes over; start sees to it if that has died
	}
	if b.config.CheckOnly || config.AckWait == ackWait && config.MaxAckPending == pending {
		return c, nil
	}
	config.AckWait, config.MaxAckPending = ackWait, pending
	c, err := s.UpdateConsumer(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("jetstream: update durable %q of stream %q: %w", config.Name, s.CachedInfo().Config.Name, err)
	}
	return c, nil
}

// stream makes sure that topic has a stream to publish to. It asks the server once for each topic.
func (b *Broker) stream(ctx context.Context, topic string) error {
	b.mu.Lock()
	_, known := b.streams[topic]
	b.mu.Unlock()
	if known {
		return nil
	}
	if _, err := b.provision(ctx, topic); err != nil {
		return err
	}
	b.mu.Lock()
	b.streams[topic] = struct{}{}
	b.mu.Unlock()
	return nil
}

// unknown makes stream ask again.
func (b *Broker) unknown(topic string) {
	b.mu.Lock()
	delete(b.streams, topic)
	b.mu.Unlock()
}
