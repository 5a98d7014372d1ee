package sqs

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// ErrClosed is what errors wrap after Close.
var ErrClosed = adapter.ErrClosed

// Broker opens subscribers and publishers on the application's client. It is safe for concurrent use.
type Broker struct {
	config Config

	subs adapter.Subscribers
	pubs adapter.Publishers

	mu    sync.Mutex
	known map[string]string // a queue's URL by its name, a topic's ARN by the topic; one for each that the program uses
}

var (
	_ brokers.Broker    = (*Broker)(nil)
	_ brokers.Registrar = (*Broker)(nil)
)

// New returns a broker, or an error that names the field of config that is wrong. It does no I/O.
func New(config Config) (*Broker, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	// A call lasts for as long as the application's client tries.
	b := &Broker{config: config, known: make(map[string]string), pubs: adapter.Publishers{System: "sqs", Unbounded: true}}
	b.subs = adapter.Subscribers{System: "sqs", Window: config.Window, Open: b.subscribe}
	return b, nil
}

// Capabilities tells what the broker can do.
func (b *Broker) Capabilities() brokers.Capabilities {
	c := brokers.Capabilities{
		System:           "aws_sqs",
		Ordering:         brokers.OrderingNone,
		Patience:         b.config.Visibility,
		ExtendsPatience:  true,
		PatienceLimit:    maxVisibility,
		CountsDeliveries: true,
		Releases:         true,
		Delays:           !b.config.FIFO,
		FanOut:           b.config.SNS != nil,
		Retention:        b.config.Retention,
		// What cannot be an attribute takes up to three times its bytes; the rest is for the payload.
		MaxHeaderBytes: b.config.MaxMessageBytes / 8,
		// A queue may have a redrive policy; Subscribe refuses one with less.
		DeliveryLimit: max(b.config.MinReceives, 1),
	}
	if b.config.FIFO {
		c.Ordering = brokers.OrderingKey
	}
	return c
}

// Subscriber returns a subscriber for s. An empty s.Topic allows it to subscribe to any topic. It does no I/O.
func (b *Broker) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	return b.subs.New(s)
}

// Publisher returns a publisher. Its Publish checks all messages before it sends any, and returns when each is stored; the
// context of the first bounds the wait. After an error a part of a call may be stored, of each key its beginning;
// publish the whole call again.
func (b *Broker) Publisher() (message.Publisher, error) {
	return b.pubs.New(b.publish, nil)
}

// Register makes the queues of a topic's consumers, so that nothing is lost that is published before they subscribe. With
// Config.SNS a queue gets what is published after it was made, and nothing from before.
func (b *Broker) Register(ctx context.Context, topic string, consumers ...string) error {
	for _, consumer := range consumers {
		if _, err := b.consumerQueue(ctx, topic, consumer); err != nil {
			return err
		}
	}
	return nil
}

// Close ends all subscriptions, at once, and waits for them. Calls of Publish that run go on; further ones fail. The client stays
// open. It is idempotent.
func (b *Broker) Close() error {
	return errors.Join(b.subs.Close(), b.pubs.Close())
}

func (b *Broker) lookUp(name string) (where string, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	where, ok = b.known[name]
	return where, ok
}

func (b *Broker) remember(name, where string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known[name] = where
}

// gone forgets where name is, since it is not there.
func (b *Broker) gone(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.known, name)
}
