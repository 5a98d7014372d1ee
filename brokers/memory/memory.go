// Package memory is a message broker inside the process: ordered, with consumer groups, redelivery and
// delivery counts. It is for tests, benchmarks and programs that need no durability.
//
// It keeps everything in memory and loses it with the process. It never drops a message that a consumer has not
// acked: when a topic is full, Publish fails.
//
// # Order
//
// A topic has one or more partitions; a message goes to one by its key. A partition is one sequence. It
// belongs to one subscription of a group at a time, so order holds with many subscribers too: with the default of
// one partition, the second subscriber of a group stands by until the first one ends. A delivery that was nacked,
// released, or left un-acked by a subscription that ended comes again before later messages.
//
// # History
//
// A group starts at the oldest message that the topic still has. Messages that no group has acked yet
// are all there; of those that every known group has acked, the newest [Config.History] per partition are kept. A
// group is known from the call of [Broker.Subscriber], if that names the topic, or from its first Subscribe.
package memory

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// The defaults of [Config].
const (
	DefaultWindow       = 1024
	DefaultMaxMessages  = 1 << 20
	DefaultHistory      = 1 << 14
	DefaultMaxNackDelay = 100 * time.Millisecond

	// NoHistory keeps no message that every known group has acked.
	NoHistory = -1

	// MaxPartitions is the most partitions that a topic can have.
	MaxPartitions = 1 << 10
)

// Config configures a [Broker]. The zero value is useful.
type Config struct {
	// Partitions is the number of partitions of each topic. Default 1: the topic is one sequence.
	Partitions int

	// Key gives the key by which a message gets its partition and which consumers see as the delivery's
	// key. nil means no key; such messages are spread over the partitions. It must not change the
	// message, nor afterwards what it returned. Default: the event's key (event.KeyOf), else none.
	Key func(*message.Message) []byte

	// Window is how many deliveries a subscription holds un-acked at once when
	// Subscription.Window is zero. Default 1024.
	Window int

	// MaxMessages bounds the messages of one topic that a known group has not acked; while no group is
	// known, all messages of the topic. Publish fails when they would become more. Default 1,048,576.
	MaxMessages int

	// History is how many messages that every known group has acked stay in each partition for groups that
	// come later. Default 16,384; NoHistory for none.
	History int

	// MaxNackDelay bounds the delay before a nacked message comes again. The first comes at once, the
	// second after 1 ms, then twice as long each time. Default 100 ms.
	MaxNackDelay time.Duration
}

// ErrFull is what Publish's error wraps when a topic holds [Config.MaxMessages] messages that are not acked.
var ErrFull = errors.New("topic is full")

// ErrClosed is what errors wrap after Close.
var ErrClosed = adapter.ErrClosed

// Broker is a message broker in memory. It is safe for concurrent use.
type Broker struct {
	config Config

	subs adapter.Members[*subscriber]

	mu     sync.Mutex
	topics map[string]*topic
}

var _ brokers.Broker = (*Broker)(nil)

// New returns an empty broker, or an error that names the field of config that is wrong.
func New(config Config) (*Broker, error) {
	defaultTo(&config.Partitions, 1)
	defaultTo(&config.Window, DefaultWindow)
	defaultTo(&config.MaxMessages, DefaultMaxMessages)
	defaultTo(&config.History, DefaultHistory)
	defaultTo(&config.MaxNackDelay, DefaultMaxNackDelay)
	if config.Key == nil {
		config.Key = adapter.Key
	}
	switch {
	case config.Partitions < 1 || config.Partitions > MaxPartitions:
		return nil, fmt.Errorf("memory: Config.Partitions is %d, want 1 to %d", config.Partitions, MaxPartitions)
	case config.Window < 1:
		return nil, fmt.Errorf("memory: Config.Window is %d, want at least 1", config.Window)
	case config.MaxMessages < 1:
		return nil, fmt.Errorf("memory: Config.MaxMessages is %d, want at least 1", config.MaxMessages)
	case config.History < NoHistory:
		return nil, fmt.Errorf("memory: Config.History is %d, want at least 1, or NoHistory", config.History)
	case config.MaxNackDelay < 0:
		return nil, fmt.Errorf("memory: Config.MaxNackDelay is %v, want at least 0", config.MaxNackDelay)
	}
	config.History = max(config.History, 0)
	return &Broker{
		config: config,
		topics: make(map[string]*topic),
	}, nil
}

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Capabilities tells what the broker can do.
func (b *Broker) Capabilities() brokers.Capabilities {
	c := brokers.Capabilities{
		System:           "memory",
		Ordering:         brokers.OrderingTopic,
		CountsDeliveries: true,
		Releases:         true,
		Delays:           true,
		FanOut:           true,
	}
	if b.config.Partitions > 1 {
		c.Ordering = brokers.OrderingPartition
	}
	return c
}

// Subscriber returns a subscriber for s. An empty s.Topic allows it to subscribe to any topic.
func (b *Broker) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	if s.Consumer == "" {
		return nil, errors.New("memory: Subscription.Consumer is empty")
	}
	if s.Window < 0 {
		return nil, fmt.Errorf("memory: Subscription.Window of consumer %q is %d, want at least 0", s.Consumer, s.Window)
	}
	if s.Window == 0 {
		s.Window = b.config.Window
	}
	if s.Topic != "" {
		// The group is known from now on, so that nothing is dropped before its first Subscribe.
		t, err := b.topic(s.Topic)
		if err != nil {
			return nil, err
		}
		t.join(s.Consumer)
	}
	sub := &subscriber{broker: b, subscription: s}
	if err := b.subs.Add(sub); err != nil {
		return nil, fmt.Errorf("memory: subscriber of consumer %q: broker: %w", s.Consumer, err)
	}
	return sub, nil
}

// Publisher returns a publisher. Its Publish takes all the messages or, with an error, none of them. It copies
// them and does not block.
func (b *Broker) Publisher() (message.Publisher, error) {
	if b.subs.Closed() {
		return nil, fmt.Errorf("memory: publisher: broker: %w", ErrClosed)
	}
	return &publisher{broker: b}, nil
}

// Unacked returns how many messages of topic consumer has not acked yet. For a consumer or a topic that is not
// known it is the number of messages that the consumer would get.
func (b *Broker) Unacked(topic, consumer string) int {
	b.mu.Lock()
	t := b.topics[topic]
	b.mu.Unlock()
	if t == nil {
		return 0
	}
	return t.unacked(consumer)
}

// Close ends all subscriptions and waits for them. The messages are gone. It is idempotent.
func (b *Broker) Close() error {
	err := b.subs.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.topics)
	return err
}

// topic returns the topic of that name; it exists from now on.
func (b *Broker) topic(name string) (*topic, error) {
	if name == "" {
		return nil, errors.New("memory: the topic's name is empty")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subs.Closed() {
		return nil, fmt.Errorf("memory: topic %q: broker: %w", name, ErrClosed)
	}
	t := b.topics[name]
	if t == nil {
		t = newTopic(name, &b.config)
		b.topics[name] = t
	}
	return t, nil
}
