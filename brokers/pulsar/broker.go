package pulsar

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// ErrClosed is what errors wrap after Close.
var ErrClosed = adapter.ErrClosed

// Broker opens subscribers and publishers on the application's client. It is safe for concurrent use.
type Broker struct {
	config    Config
	producers *producers
	calls     sync.WaitGroup // of the client, which nobody waits for any more

	subs adapter.Members[*subscriber]
	pubs adapter.Members[*publisher]
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
	b := &Broker{config: config}
	b.producers = newProducers(&b.config, &b.calls)
	return b, nil
}

// headerShare is the part of a message that its metadata can have: they take three bytes for one where they are no text, and a batch
// has those of its first message twice.
const headerShare = 8

// Capabilities tells what the broker can do.
func (b *Broker) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{
		System:         "pulsar",
		Ordering:       brokers.OrderingKey,
		MaxUnacked:     b.config.MaxUnacked / 2,
		Releases:       true,
		Delays:         !b.config.NoDelays,
		FanOut:         true,
		Replays:        b.config.Retention > 0,
		MaxHeaderBytes: b.config.MaxMessageBytes / headerShare,
	}
}

// Subscriber returns a subscriber for s. An empty s.Topic allows it to subscribe to any topic. It does no I/O.
func (b *Broker) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	if err := checkName("consumer", s.Consumer); err != nil {
		return nil, fmt.Errorf("pulsar: Subscription.Consumer: %w", err)
	}
	switch most := b.config.MaxUnacked / 2; {
	case s.Window < 0 || s.Window > most:
		return nil, fmt.Errorf("pulsar: Subscription.Window of consumer %q is %d: want 0 to %d, half of Config.MaxUnacked", s.Consumer, s.Window, most)
	case s.Window == 0:
		s.Window = b.config.Window
	}
	sub := &subscriber{broker: b, subscription: s}
	if err := b.subs.Add(sub); err != nil {
		return nil, fmt.Errorf("pulsar: subscriber of consumer %q: broker: %w", s.Consumer, err)
	}
	return sub, nil
}

// Publisher returns a publisher. Its Publish returns when the server has confirmed each message: as many of its bookies as it is
// configured for have it on disk. A call sends its messages together, and calls of all publishers share a producer for each topic, so that messages
// of a key are stored in the order of the calls, also through a lost connection. An error is a [*brokers.PublishError], which names the
// messages that were not stored, or of which that is not known: those behind them may be stored, so that order is lost
// where only a part is published again. Config.PublishTimeout and the context of a call's first message bound the wait.
func (b *Broker) Publisher() (message.Publisher, error) {
	p := &publisher{broker: b}
	if err := b.pubs.Add(p); err != nil {
		return nil, fmt.Errorf("pulsar: publisher: broker: %w", err)
	}
	return p, nil
}

// Register makes the subscriptions of consumers, which begin with the oldest message that the topic has: what is published from then on is kept
// for them. Those that are there stay as they are.
func (b *Broker) Register(ctx context.Context, topic string, consumers ...string) error {
	if err := checkName("topic", topic); err != nil {
		return fmt.Errorf("pulsar: register: %w", err)
	}
	for _, consumer := range consumers {
		if err := b.register(ctx, topic, consumer); err != nil {
			return fmt.Errorf("pulsar: register consumer %q with topic %q: %w", consumer, topic, err)
		}
	}
	return nil
}

// Close ends all subscriptions and calls of Publish, waits for them, and closes the producers. What the client still does about a
// server that does not answer is waited for at most Config.CloseTimeout. The client stays open. It is idempotent.
func (b *Broker) Close() error {
	err := errors.Join(b.subs.Close(), b.pubs.Close())
	b.producers.close()
	if !waitFor(&b.calls, b.config.CloseTimeout) {
		b.config.Logger.Warn("pulsar: the client still waits for the server; its goroutines end with its OperationTimeout")
	}
	return err
}
