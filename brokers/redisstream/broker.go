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

	mu    sync.Mutex
	taken map[place]bool // by subscriptions, where Config.Member names them
}

// place is a number among the members that this broker has in one group.
type place struct {
	topic, group string
	number       int
}

var _ brokers.Broker = (*Broker)(nil)

// New returns a broker, or an error that names the field of config that is wrong. It does no I/O.
func New(config Config) (*Broker, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	// A call lasts for as long as the application's client tries.
	b := &Broker{config: config, pubs: adapter.Publishers{System: "redisstream", Unbounded: true}, taken: map[place]bool{}}
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

// member returns the name of a new subscription within its group, and what gives it back. With a stable name, the only one
// that a broker has in a group has just that name, and others a number: what comes next there finds what was held, whatever
// else the broker has subscribed to, and in whatever order.
func (b *Broker) member(topic, group string) (name string, free func()) {
	if b.config.Member == "" {
		return memberPrefix + rand.Text(), func() {}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p := place{topic, group, 1}
	for b.taken[p] {
		p.number++
	}
	b.taken[p] = true
	name = memberPrefix + b.config.Member
	if p.number > 1 {
		name = fmt.Sprintf("%s.%d", name, p.number)
	}
	return name, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.taken, p)
	}
}
