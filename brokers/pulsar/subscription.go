package pulsar

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// maxRemembered bounds, with the window, how much is remembered of what was acked and can come again: batches can be large.
const maxRemembered = 1 << 14

type hold = adapter.Held[*entry]

// subscription is one member at work. One goroutine, run, receives and hands over; the settler's acks and gives back; others look for new
// partitions, and send what is to be delayed.
type subscription struct {
	broker   *Broker
	config   *Config
	log      *slog.Logger
	consumer string
	topic    string
	member   string
	window   int
	out      chan *message.Message
	in       chan received
	settler  *adapter.Settler[*entry]
	sending  sync.WaitGroup // delayed messages on their way
	kick     chan struct{}  // capacity 1: something comes again
	closing  chan struct{}  // closed when acks and delayed messages have had their time

	forwarding sync.WaitGroup

	mu      sync.Mutex
	sources []*source
	held    map[position]*hold
	again   []again // in the order of their time
	batches map[batchID]*batch
	settled recent // acks that the server has, or had not, taken when it took the message back
}

// entry is one message as it was received.
type entry struct {
	source  *source
	message pulsarclient.Message
	at      position
	breaks  uint64 // of the source, when it came
	count   int    // deliveries, this one included, as far as the server remembers
	note    *delayNote
	done    bool // it was acked before, and the server does not know
}

// again is what comes at a time: from here, or from the server if it goes back.
type again struct {
	entry  *entry
	at     time.Time
	counts bool // as one more delivery
	back   bool
}

// member is the name of a new member of a subscription. The server spreads keys by it.
func (c *Config) member() string { return c.Name + "-" + rand.Text() }

func newSubscription(b *Broker, want brokers.Subscription, topic string) *subscription {
	s := &subscription{
		broker:   b,
		config:   &b.config,
		log:      b.config.Logger.With("topic", topic, "consumer", want.Consumer),
		consumer: want.Consumer,
		topic:    topic,
		member:   b.config.member(),
		window:   want.Window,
		out:      make(chan *message.Message),
		in:       make(chan received),
		kick:     make(chan struct{}, 1),
		closing:  make(chan struct{}),
		held:     make(map[position]*hold),
		batches:  make(map[batchID]*batch),
		settled:  recent{most: 4*want.Window + maxRemembered},
	}
	s.settler = adapter.NewSettler(want.Window, s.settle)
	s.settler.Delays = !b.config.NoDelays
	return s
}

// open opens a consumer for each partition, and one for what was delayed.
func (s *subscription) open(ctx context.Context) error {
	if err := s.openNew(ctx); err != nil {
		return err
	}
	if s.config.NoDelays {
		return nil
	}
	topic := s.config.DelayTopic(s.topic, s.consumer)
	src := newSource(topic)
	src.delayed = true
	if err := s.openOne(ctx, src); err != nil {
		return fmt.Errorf("topic of delayed messages %q, see Config.NoDelays: %w", topic, err)
	}
	return nil
}

// openNew opens consumers for the partitions that have none.
func (s *subscription) openNew(ctx context.Context) error {
	all, err := s.broker.partitions(ctx, s.topic)
	if err != nil {
		return err
	}
	s.mu.Lock()
	have := make(map[string]bool, len(s.sources))
	for _, src := range s.sources {
		have[src.topic] = true
	}
	s.mu.Unlock()
	for i, topic := range all {
		if have[topic] {
			continue
		}
		src := newSource(topic)
		src.partition = int32(i)
		if err := s.openOne(ctx, src); err != nil {
			return err
		}
	}
	return nil
}

func (s *subscription) openOne(ctx context.Context, src *source) error {
	options := s.config.options(src.topic, s.consumer, s.member, s.window)
	options.MessageChannel = src.offered
	options.BackOffPolicyFunc = func() backoff.Policy {
		policy := src.breakUp()
		s.log.Warn("pulsar: the connection was lost, or the topic moves; connects again", "partition", src.topic)
		s.lost(src)
		return policy
	}
	c, err := s.broker.subscribe(ctx, options)
	if err != nil {
		close(src.end) // for a consumer that is made still
		close(src.gone)
		return err
	}
	src.consumer = c
	s.forwarding.Go(func() { src.forward(s.in, s.log) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sources = append(s.sources, src)
	return nil
}

// abandon ends a subscription that does not run.
func (s *subscription) abandon() {
	s.settler.Close()
	close(s.closing)
	s.closeSources(time.Now().Add(s.config.CloseTimeout))
	close(s.out)
}

func (s *subscription) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watcher sync.WaitGroup
	watcher.Go(func() { s.watchPartitions(ctx) })
	s.receive(ctx)
	cancel()
	watcher.Wait()
	s.end()
}

func (s *subscription) watchPartitions(ctx context.Context) {
	look := time.NewTicker(s.config.PartitionInterval)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			if err := s.openNew(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("pulsar: cannot look for new partitions; tries again", "error", err, "in", s.config.PartitionInterval)
			}
		}
	}
}

// receive hands over what comes until ctx ends.
func (s *subscription) receive(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		next := s.handOverAgain(ctx)
		if !s.waitForRoom(ctx, next) {
			continue
		}
		var due <-chan time.Time
		if !next.IsZero() {
			timer.Reset(time.Until(next))
			due = timer.C
		}
		select {
		case <-ctx.Done():
		case <-due:
		case <-s.kick:
		case r := <-s.in:
			s.take(ctx, r)
		}
	}
}

// waitForRoom waits for room in the window, but not beyond at. It reports whether there is some.
func (s *subscription) waitForRoom(ctx context.Context, at time.Time) bool {
	if !at.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, at)
		defer cancel()
	}
	return s.settler.Room(ctx) > 0
}

// take hands over what was received.
func (s *subscription) take(ctx context.Context, r received) {
	e := &entry{
		source:  r.source,
		message: r.message,
		at:      positionOf(r.message.ID()),
		breaks:  r.breaks,
		count:   int(r.message.RedeliveryCount()) + 1,
	}
	if r.source.delayed {
		if e.note = readDelay(r.message); e.note != nil {
			e.count += e.note.Count
		}
	}
	s.arrived(e)
	if e.note != nil && !e.done {
		// The server sends what is delayed up to a second before its time, unless it is told to be strict.
		if until := time.UnixMilli(e.note.Until); time.Until(until) > 0 {
			s.comeAgain(again{entry: e, at: until})
			return
		}
	}
	s.handOver(ctx, e)
}

// arrived notes what has come from the server. If it is here already, the server has taken the earlier delivery back, by a way that was not
// noticed: its context ends.
func (s *subscription) arrived(e *entry) {
	s.mu.Lock()
	e.done = s.settled.has(e.at)
	earlier := s.held[e.at]
	delete(s.held, e.at)
	waiting := len(s.again)
	s.again = slices.DeleteFunc(s.again, func(a again) bool { return a.entry.at == e.at })
	waiting -= len(s.again)
	if earlier == nil && waiting == 0 {
		s.join(e)
	}
	s.mu.Unlock()
	s.settler.Reserve(-waiting)
	if earlier != nil {
		s.settler.Drop(earlier)
	}
}

// handOver hands e over, as far as ctx lasts.
func (s *subscription) handOver(ctx context.Context, e *entry) {
	d := brokers.Delivery{
		Topic:     s.topic,
		Partition: e.source.partition,
		Offset:    e.at.offset(),
		Key:       keyOf(e.message),
		Time:      e.message.PublishTime(),
	}
	if n := e.note; n != nil {
		d.Partition, d.Offset, d.Time = n.Partition, n.Offset, time.UnixMilli(n.Time)
	}
	var m *message.Message
	m, d.DecodeError = decode(e.message)
	if e.note != nil {
		delete(m.Metadata, propertyDelay)
	}
	h := s.settler.Hold(ctx, m, d, e)
	s.mu.Lock()
	s.held[e.at] = h
	lost := e.breaks != e.source.breaks.Load()
	s.mu.Unlock()
	if lost {
		s.lost(e.source)
		return
	}
	if e.done {
		m.Ack()
		h.Delivery.Settled()
		return
	}
	given := m.Context()
	select {
	case s.out <- m:
	case <-given.Done(): // with ctx, or since the connection was lost
	}
}

// handOverAgain hands over what is due again, and returns when the next is; the zero time: nothing waits.
func (s *subscription) handOverAgain(ctx context.Context) time.Time {
	due, next := s.takeDue(time.Now())
	for _, a := range due {
		s.settler.Reserve(-1)
		if a.back {
			s.leave(a.entry, true)
			continue
		}
		if a.counts {
			a.entry.count++
		}
		s.handOver(ctx, a.entry)
	}
	return next
}

func (s *subscription) takeDue(now time.Time) (due []again, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.again) > 0 && !now.Before(s.again[0].at) {
		due = append(due, s.again[0])
		s.again = s.again[1:]
	}
	if len(s.again) > 0 {
		next = s.again[0].at
	}
	slices.SortStableFunc(due, func(a, b again) int { return a.entry.at.compare(b.entry.at) })
	return due, next
}

// lost lets go of what came over a connection that is lost: the server gives it to anybody, and this member may get it again.
func (s *subscription) lost(src *source) {
	var dropped []*hold
	s.mu.Lock()
	breaks := src.breaks.Load()
	stale := func(e *entry) bool { return e.source == src && e.breaks != breaks }
	for at, h := range s.held {
		if stale(h.Entry) {
			dropped = append(dropped, h)
			delete(s.held, at)
		}
	}
	waiting := len(s.again)
	s.again = slices.DeleteFunc(s.again, func(a again) bool { return stale(a.entry) })
	waiting -= len(s.again)
	for id, b := range s.batches {
		if id.source == src && id.breaks != breaks {
			s.remember(b)
			delete(s.batches, id)
		}
	}
	s.mu.Unlock()
	s.settler.Reserve(-waiting)
	for _, h := range dropped {
		s.settler.Drop(h)
	}
}

// end tells the server all that is known, gives the rest back, and closes the channel.
func (s *subscription) end() {
	deadline := time.Now().Add(s.config.CloseTimeout)
	// The last third is for the consumers.
	late := time.AfterFunc(s.config.CloseTimeout*2/3, func() { close(s.closing) })
	s.settler.Close()
	s.sending.Wait()
	if late.Stop() {
		close(s.closing)
	}
	s.closeSources(deadline)
	close(s.out)
}

// closeSources closes the consumers: the server takes back, in order, what they have.
func (s *subscription) closeSources(deadline time.Time) {
	s.mu.Lock()
	all := s.sources
	s.sources = nil
	s.mu.Unlock()
	var open sync.WaitGroup
	for _, src := range all {
		close(src.end)
		open.Add(1)
		s.broker.calls.Go(func() {
			defer open.Done()
			src.consumer.Close()
			close(src.gone)
		})
	}
	if !waitFor(&open, time.Until(deadline)) {
		s.log.Warn("pulsar: the server did not confirm the end of a subscription in time; what was held comes again when it has noticed")
		return // what forwards ends with its consumer
	}
	s.forwarding.Wait()
}
