package redisstream

import (
	"crypto/rand"
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
	config Config

	subs adapter.Subscribers
	pubs adapter.Publishers

	mu  sync.Mutex
	ids int // of subscriptions, so that each is a member of its own
}

var _ brokers.Broker = (*Broker)(nil)

// New returns a broker, or an error that names the field of config that is wrong. It does no I/O.
func New(config Config) (*Broker, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	// A call lasts for as long as the application's client tries.
	b := &Broker{config: config, pubs: adapter.Publishers{System: "redisstream", Unbounded: true}}
	b.subs = adapter.Subscribers{System: "redisstream", Window: config.Window, Open: b.subscribe}
	return b, nil
}

// Capabilities tells what the broker can do.
func (b *Broker) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{
		System:           "redis",
		Ordering:         brokers.OrderingTopic,
		Patience:         b.config.Patience,
		ExtendsPatience:  true,
		CountsDeliveries: true,
		Releases:         true,
		FanOut:           true,
		Replays:          true,
		Retention:        max(b.config.Retention, 0),
	}
}

// Subscriber returns a subscriber for s. An empty s.Topic allows it to subscribe to any topic. It does no I/O.
func (b *Broker) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	return b.subs.New(s)
}

// Publisher returns a publisher. Its Publish returns when the server has stored every message, in order: in
// transactions of at most 256. After an error a part of a call may be stored, from its beginning; publish the whole call
// again. The context of a batch's first message bounds the wait.
func (b *Broker) Publisher() (message.Publisher, error) {
	return b.pubs.New(b.publish, nil)
}

// Close ends all subscriptions and waits for them. Calls of Publish that run go on; further ones fail. The client stays open. It is
// idempotent.
func (b *Broker) Close() error {
	return errors.Join(b.subs.Close(), b.pubs.Close())
}

// member returns the name of a new subscription within its group. The first of a broker with a stable name has just
// that one.
func (b *Broker) member() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ids++
	switch {
	case b.config.Member == "":
		return memberPrefix + rand.Text()
	case b.ids == 1:
		return memberPrefix + b.config.Member
	}
	return fmt.Sprintf("%s%s.%d", memberPrefix, b.config.Member, b.ids)
}
