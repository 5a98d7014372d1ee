package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// ErrClosed is what errors wrap after Close, and the cause of the end of deliveries whose subscriber was closed.
var ErrClosed = adapter.ErrClosed

// maxHeaderBytes is what Capabilities tells: a record with its headers must fit into a batch, 1 MB by default, and
// leave room for the payload.
const maxHeaderBytes = 256 << 10

// Broker opens subscribers and publishers on one cluster. A subscription has connections of its own, since it is a member of
// a group; all publishers share one client. It is safe for concurrent use.
type Broker struct {
	config   Config
	producer *kgo.Client
	admin    *kadm.Client

	subs adapter.Members[*subscriber]

	purging sync.Mutex // before mu

	mu        sync.Mutex
	topics    map[string]knownTopic       // that were published to
	running   map[groupPartition][]*hold  // of partitions that were given up, until somebody gets them here again
	instances map[string]map[int]struct{} // ordinals in use of Config.InstanceID, by consumer
}

type groupPartition struct {
	consumer string
	partitionID
}

var _ brokers.Broker = (*Broker)(nil)

// New returns a broker, or an error that names the field of config that is wrong. It blocks until a broker of the cluster has
// answered or Config.DialTimeout has passed.
func New(config Config) (*Broker, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Broker{
		config:    config,
		topics:    make(map[string]knownTopic),
		running:   make(map[groupPartition][]*hold),
		instances: make(map[string]map[int]struct{}),
	}
	if b.producer, err = kgo.NewClient(b.config.producer()...); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	b.admin = kadm.NewClient(b.producer)
	ctx, cancel := context.WithTimeout(context.Background(), config.DialTimeout)
	defer cancel()
	if err := b.producer.Ping(ctx); err != nil {
		b.producer.Close()
		return nil, fmt.Errorf("kafka: connect to %q: %w", config.Seeds, err)
	}
	return b, nil
}

// Capabilities tells what the broker can do.
func (b *Broker) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{
		System:         "kafka",
		Ordering:       brokers.OrderingPartition,
		Releases:       true,
		FanOut:         true,
		Replays:        true,
		MaxHeaderBytes: maxHeaderBytes,
	}
}

// Subscriber returns a subscriber for s; s.Consumer is the group. An empty s.Topic allows it to subscribe to any topic. It does no
// I/O.
func (b *Broker) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	switch {
	case s.Consumer == "":
		return nil, errors.New("kafka: Subscription.Consumer is empty")
	case s.Window < 0 || s.Window > MaxWindow:
		return nil, fmt.Errorf("kafka: Subscription.Window of consumer %q is %d, want 0 to %d", s.Consumer, s.Window, MaxWindow)
	}
	defaultTo(&s.Window, b.config.Window)
	sub := &subscriber{broker: b, subscription: s}
	if err := b.subs.Add(sub); err != nil {
		return nil, fmt.Errorf("kafka: subscriber of consumer %q: broker: %w", s.Consumer, err)
	}
	return sub, nil
}

// Publisher returns a publisher. Its Publish blocks until every message is stored on all in-sync replicas or has failed; see
// [brokers.PublishError]. Messages of one key are stored in the order of the calls, each once, whatever is sent again. A message whose
// context ends before it was sent is given up.
func (b *Broker) Publisher() (message.Publisher, error) {
	if b.subs.Closed() {
		return nil, fmt.Errorf("kafka: publisher: broker: %w", ErrClosed)
	}
	return &publisher{broker: b}, nil
}

// Close ends all subscriptions, waits for them, and closes the connections. Messages that are being published fail. It is
// idempotent.
func (b *Broker) Close() error {
	err := b.subs.Close()
	b.producer.Close()
	return err
}

// keepRunning remembers deliveries whose handlers may still run, for the next assignment of their partition to this process
// (fault K3). takeRunning takes them out again.
func (b *Broker) keepRunning(consumer string, id partitionID, holds []*hold) {
	holds = slices.DeleteFunc(holds, (*hold).ended)
	b.mu.Lock()
	defer b.mu.Unlock()
	key := groupPartition{consumer, id}
	holds = append(slices.DeleteFunc(b.running[key], (*hold).ended), holds...)
	if len(holds) == 0 {
		delete(b.running, key)
		return
	}
	b.running[key] = holds
}

func (b *Broker) takeRunning(consumer string, id partitionID) []*hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := groupPartition{consumer, id}
	holds := b.running[key]
	delete(b.running, key)
	return slices.DeleteFunc(holds, (*hold).ended)
}

// instance returns the static id of a further member of consumer, and how to give it back.
func (b *Broker) instance(consumer string) (id string, done func()) {
	if b.config.InstanceID == "" {
		return "", func() {}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	used := b.instances[consumer]
	if used == nil {
		used = make(map[int]struct{})
		b.instances[consumer] = used
	}
	n := 1
	for {
		if _, taken := used[n]; !taken {
			break
		}
		n++
	}
	used[n] = struct{}{}
	id = b.config.InstanceID
	if n > 1 {
		id = fmt.Sprintf("%s-%d", id, n)
	}
	return id, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(used, n)
	}
}
