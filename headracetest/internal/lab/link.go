package lab

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/internal/trial"
	"github.com/headrace-go/headrace/outbox"
)

// errKilled is what a process that was killed meets.
var errKilled = errors.New("headracetest: the process was killed")

// longestWait is what any back-off or delay of a delivery is cut to.
const longestWait = time.Millisecond

func shorten(d time.Duration) time.Duration { return min(d, longestWait) }

// link is one process's connection to the server, as its broker. When it is cut the process is dead: nothing it does reaches
// the server any more, and what it had not acked is delivered to the next one.
type link struct {
	server  *memory.Broker
	journal *journal
	topic   string // whose messages can have a plan

	steered atomic.Bool // the runtime knows it for what it is

	ctx    context.Context // of the subscriptions
	cancel context.CancelFunc

	mu       sync.Mutex
	isDead   bool
	reads    []brokers.Subscription
	outboxes []outbox.Source
	plans    map[string]*Plan                        // by UUID
	held     map[*message.Message]context.CancelFunc // by the server's message
}

var (
	_ brokers.Broker = (*link)(nil)
	_ trial.Broker   = (*link)(nil)
)

func newLink(server *memory.Broker, journal *journal, topic string) *link {
	ctx, cancel := context.WithCancel(context.Background())
	return &link{
		server: server, journal: journal, topic: topic, ctx: ctx, cancel: cancel,
		plans: map[string]*Plan{}, held: map[*message.Message]context.CancelFunc{},
	}
}

// cut kills the process. The contexts of its deliveries have ended when it returns.
func (k *link) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.isDead = true
	for _, cancel := range k.held {
		cancel()
	}
	clear(k.held)
	k.cancel()
}

// dead is closed when the link was cut.
func (k *link) dead() <-chan struct{} { return k.ctx.Done() }

func (k *link) alive() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.isDead
}

// Capabilities implements brokers.Broker.
func (k *link) Capabilities() brokers.Capabilities { return k.server.Capabilities() }

// Subscriber implements brokers.Broker.
func (k *link) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	inner, err := k.server.Subscriber(s)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reads = append(k.reads, s)
	return &subscriber{link: k, inner: inner, consumer: s.Consumer}, nil
}

// Publisher implements brokers.Broker.
func (k *link) Publisher() (message.Publisher, error) {
	inner, err := k.server.Publisher()
	if err != nil {
		return nil, err
	}
	return &publisher{link: k, inner: inner}, nil
}

// Close implements brokers.Broker. The server is the lab's.
func (*link) Close() error { return nil }

// Relays implements trial.Broker.
func (k *link) Relays(source outbox.Source) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.outboxes = append(k.outboxes, source)
}

func (k *link) relayed() []outbox.Source {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.outboxes)
}

func (k *link) subscriptions() []brokers.Subscription {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.reads)
}

func (k *link) topics() (topics []string) {
	for _, s := range k.subscriptions() {
		topics = append(topics, s.Topic)
	}
	return topics
}

// readers is how many consumers read the topic whose messages can have a plan.
func (k *link) readers() (n int) {
	for _, s := range k.reads {
		if s.Topic == k.topic {
			n++
		}
	}
	return n
}

// plan sets what is planned for the messages of that UUID.
func (k *link) plan(uuid string, p *Plan) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.plans[uuid] = p
}

func (k *link) planOf(uuid string) *Plan {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.plans[uuid]
}

// hold makes of a message of the server's the one that the process gets.
func (k *link) hold(consumer string, m *message.Message) *message.Message {
	ctx, cancel := context.WithCancel(m.Context())
	k.mu.Lock()
	if k.isDead {
		cancel()
	} else {
		k.held[m] = cancel
	}
	k.mu.Unlock()

	own := message.NewMessage(m.UUID, m.Payload)
	own.Metadata = m.Metadata
	d := *brokers.DeliveryOf(m.Context())
	release, delay := d.Release, d.Delay
	d.Release = func() {
		if k.let(m) {
			release()
		}
	}
	d.Delay = func(t time.Duration) bool { return k.let(m) && delay(shorten(t)) }
	d.Settled = func() { k.settled(consumer, m, own) }
	own.SetContext(brokers.WithDelivery(ctx, &d))
	return own
}

// let ends the hold of m. It is false if the process is dead.
func (k *link) let(m *message.Message) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if cancel := k.held[m]; cancel != nil {
		cancel()
		delete(k.held, m)
	}
	return !k.isDead
}

// settled tells the server what the process told: that it has acked or nacked its own copy of m.
func (k *link) settled(consumer string, m, own *message.Message) {
	defer k.journal.change()
	select {
	case <-own.Acked():
		if p := k.planOf(m.UUID); p != nil && p.kill != never {
			if p.lastAck(consumer, k) {
				k.cut()
			}
			return // it dies before its ack gets through
		}
		if k.let(m) {
			m.Ack()
		}
	case <-own.Nacked():
		if k.let(m) {
			m.Nack()
		}
	default:
	}
}

// subscriber is one consumer's.
type subscriber struct {
	link     *link
	inner    message.Subscriber
	consumer string
	feeding  sync.WaitGroup
}

// Subscribe implements message.Subscriber. The subscription ends with the link as well.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	unlink := context.AfterFunc(s.link.ctx, cancel)
	in, err := s.inner.Subscribe(ctx, topic)
	if err != nil {
		cancel()
		return nil, err
	}
	out := make(chan *message.Message)
	s.feeding.Go(func() {
		defer close(out)
		defer cancel()
		defer unlink()
		for m := range in {
			select {
			case out <- s.link.hold(s.consumer, m):
			case <-ctx.Done(): // the server gives it back
			}
		}
	})
	return out, nil
}

// Close implements message.Subscriber.
func (s *subscriber) Close() error {
	err := s.inner.Close()
	s.feeding.Wait()
	return err
}

// publisher keeps a copy of what is published.
type publisher struct {
	link  *link
	inner message.Publisher
}

// Publish implements message.Publisher.
func (p *publisher) Publish(topic string, msgs ...*message.Message) error {
	if !p.link.alive() {
		return errKilled
	}
	if err := p.inner.Publish(topic, msgs...); err != nil {
		return err
	}
	for _, m := range msgs {
		p.link.journal.publish(topic, m)
	}
	return nil
}

// Close implements message.Publisher.
func (p *publisher) Close() error { return p.inner.Close() }
