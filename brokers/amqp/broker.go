package amqp

import (
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// ErrClosed is what errors wrap after Close.
var ErrClosed = adapter.ErrClosed

// Broker opens subscribers and publishers on connections of its own, one for reading and one for publishing, which it makes
// when they are needed, and again when they were lost. It is safe for concurrent use.
type Broker struct {
	config                Config
	consuming, publishing *link
	internal              *sender       // of handed over and delayed messages
	registering           chan struct{} // capacity 1

	subs adapter.Subscribers
	pubs adapter.Publishers

	mu     sync.Mutex
	topics map[string]bool            // exchanges that were made or checked; as many as the application has
	level  int                        // of the delays, those below it were made
	reads  map[*subscription]struct{} // that run
}

var (
	_ brokers.Broker    = (*Broker)(nil)
	_ brokers.Registrar = (*Broker)(nil)
	_ brokers.Lagger    = (*Broker)(nil)
)

// New returns a broker, or an error that names the field of config that is wrong. It does no I/O.
func New(config Config) (*Broker, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Broker{
		config:      config,
		pubs:        adapter.Publishers{System: "amqp"},
		registering: make(chan struct{}, 1),
		topics:      make(map[string]bool),
		reads:       make(map[*subscription]struct{}),
	}
	b.subs = adapter.Subscribers{System: "amqp", Window: config.Window, MaxWindow: maxWindow, Open: b.subscribe}
	b.consuming, b.publishing = newLink(&b.config, "consumer"), newLink(&b.config, "publisher")
	b.internal = newSender(b.publishing)
	return b, nil
}

// Capabilities tells what the broker can do.
func (b *Broker) Capabilities() brokers.Capabilities {
	c := brokers.Capabilities{
		System:           "rabbitmq",
		Ordering:         brokers.OrderingTopic,
		Patience:         max(b.config.Patience, 0),
		CountsDeliveries: true,
		Releases:         true,
		Delays:           true,
		FanOut:           true,
		MaxHeaderBytes:   maxHeaderBytes,
	}
	if b.config.CompetingConsumers {
		c.Ordering = brokers.OrderingNone
	}
	if b.config.Topology == Check {
		c.Delays = false // there are no queues for it
		c.DeliveryLimit = operatorsLimit
	}
	return c
}

// Subscriber returns a subscriber for s. An empty s.Topic allows it to subscribe to any topic. It does no I/O.
func (b *Broker) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	sub, err := b.subs.New(s)
	if err != nil {
		return nil, err
	}
	return &subscriber{sub, b, s.Consumer}, nil
}

// Publisher returns a publisher with a channel of its own. Its Publish returns when the server has confirmed each message, in a quorum queue:
// a majority of its nodes has it on disk. The messages of all calls are in flight together, and stored in the order of the calls. An
// error is a [*brokers.PublishError], which names the messages that were not stored, or of which that is not known: those behind them may
// be stored, so that order is lost where only a part is published again. Config.PublishTimeout and the context of a
// call's first message bound the wait, also for a server that cannot be reached, or is short of memory.
func (b *Broker) Publisher() (message.Publisher, error) {
	to := newSender(b.publishing)
	return b.pubs.New(func(topic string, messages []*message.Message) error { return b.publish(to, topic, messages) }, to.close)
}

// Close ends all subscriptions and calls of Publish, waits for them, and closes the connections. It is idempotent.
func (b *Broker) Close() error {
	err := errors.Join(b.subs.Close(), b.pubs.Close())
	b.internal.close()
	b.consuming.close()
	b.publishing.close()
	return err
}
