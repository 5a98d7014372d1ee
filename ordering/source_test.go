package ordering_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/ordering"
)

// source is a broker in the hands of a test. It delivers what push was given, in that order, to
// whoever reads, and closes its channels when their context ends, or all of them in Close.
type source struct {
	unkeyed   bool  // deliveries have no broker key
	bare      bool  // no Delivery in the context at all
	partition int32 // partition of what is pushed
	onRelease func()
	onSettled func()

	mu     sync.Mutex
	topics map[string]chan *sent
	ready  map[chan struct{}]struct{} // of those who pull
	taken  atomic.Int64
	closed chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
}

func newSource() *source {
	return &source{topics: map[string]chan *sent{}, ready: map[chan struct{}]struct{}{}, closed: make(chan struct{}), partition: -1}
}

// sent is one delivery of one message.
type sent struct {
	topic, key, id string
	partition      int32
	msg            *message.Message
	cancel         context.CancelFunc // takes the delivery away
	cancelled      bool
	released       atomic.Int32
}

func (d *sent) String() string { return d.topic + "/" + d.key + "/" + d.id }

// settlement tells what happened to the delivery; a delivery that both was released and acked or
// nacked shows both.
func (d *sent) settlement() string {
	s := ""
	select {
	case <-d.msg.Acked():
		s += "acked"
	default:
	}
	select {
	case <-d.msg.Nacked():
		s += "nacked"
	default:
	}
	for range d.released.Load() {
		s += "released"
	}
	if s == "" {
		return "unsettled"
	}
	return s
}

func (s *source) queue(topic string) chan *sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.topics[topic] == nil {
		s.topics[topic] = make(chan *sent, 100_000)
	}
	return s.topics[topic]
}

func (s *source) push(topic, key string, ids ...string) []*sent {
	var all []*sent
	for _, id := range ids {
		d := &sent{topic: topic, key: key, id: id, partition: s.partition, msg: message.NewMessage(id, []byte(id))}
		d.msg.Metadata["key"] = key
		s.deliver(d)
		all = append(all, d)
	}
	return all
}

// deliver puts d at the end of its topic.
func (s *source) deliver(d *sent) {
	s.queue(d.topic) <- d
	s.mu.Lock()
	defer s.mu.Unlock()
	for ready := range s.ready {
		select {
		case ready <- struct{}{}:
		default:
		}
	}
}

func (s *source) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	queue := s.queue(topic)
	s.wg.Go(func() {
		defer close(out)
		for {
			var d *sent
			select {
			case d = <-queue:
			case <-ctx.Done():
				return
			case <-s.closed:
				return
			}
			s.prepare(ctx, d)
			select {
			case out <- d.msg:
				s.taken.Add(1)
			case <-ctx.Done():
				return
			case <-s.closed:
				return
			}
		}
	})
	return out, nil
}

// prepare gives d its context.
func (s *source) prepare(ctx context.Context, d *sent) {
	var own context.Context
	own, d.cancel = context.WithCancel(ctx)
	if d.cancelled {
		d.cancel()
	}
	if !s.bare {
		delivery := &brokers.Delivery{Topic: d.topic, Partition: d.partition, Offset: -1, Release: func() {
			d.released.Add(1)
			if s.onRelease != nil {
				s.onRelease()
			}
		}, Settled: s.onSettled}
		if !s.unkeyed {
			delivery.Key = []byte(d.key)
		}
		own = brokers.WithDelivery(own, delivery)
	}
	d.msg.SetContext(own)
}

// pulled is a source that is pulled from.
type pulled struct{ *source }

// pulling makes all sources those that are pulled from, see TestPulled.
var pulling = false

func subscriberOf(s message.Subscriber) message.Subscriber {
	if src, ok := s.(*source); ok && pulling {
		return pulled{src}
	}
	return s
}

type pull struct {
	source *source
	ctx    context.Context
	queue  chan *sent
	ready  chan struct{}
}

func (p pulled) Pull(ctx context.Context, topic string) (brokers.Pull, error) {
	s := p.source
	pl := &pull{source: s, ctx: ctx, queue: s.queue(topic), ready: make(chan struct{}, 1)}
	s.mu.Lock()
	s.ready[pl.ready] = struct{}{}
	s.mu.Unlock()
	s.wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.closed:
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.ready, pl.ready)
		close(pl.ready)
	})
	return pl, nil
}

func (p *pull) Ready() <-chan struct{} { return p.ready }

func (p *pull) Next() *message.Message {
	select {
	case <-p.source.closed:
		return nil
	case <-p.ctx.Done():
		return nil
	default:
	}
	select {
	case d := <-p.queue:
		p.source.prepare(p.ctx, d)
		p.source.taken.Add(1)
		return d.msg
	default:
		return nil
	}
}

func (s *source) Close() error {
	s.once.Do(func() { close(s.closed) }) // two handlers of a router share a source
	s.wg.Wait()
	return nil
}

// rig runs an intake between a source and a handler. Its router is the smallest one: a goroutine per
// message that comes out, and an ack or a nack of what came out.
type rig struct {
	*source
	t      *testing.T
	intake *ordering.Intake
	sub    message.Subscriber
	ctx    context.Context
	stop   context.CancelFunc // ends the context of Subscribe
	wg     sync.WaitGroup

	mu      sync.Mutex
	events  []string // "+id" a handler began, "-id" it returned
	gates   map[string]chan error
	handler message.HandlerFunc
}

// newRig makes a rig whose handler returns what finish says for the message's id, when it says it.
func newRig(t *testing.T, cfg ordering.Config) *rig {
	t.Helper()
	if cfg.Consumer == "" {
		cfg.Consumer = "test"
	}
	intake, err := ordering.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{source: newSource(), t: t, intake: intake, gates: map[string]chan error{}}
	r.ctx, r.stop = context.WithCancel(t.Context())
	r.handler = func(msg *message.Message) ([]*message.Message, error) {
		r.note("+" + msg.UUID)
		defer r.note("-" + msg.UUID)
		return nil, <-r.gate(msg.UUID)
	}
	if r.sub, err = intake.Decorate(subscriberOf(r.source)); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) subscribe(topic string) {
	r.t.Helper()
	out, err := r.sub.Subscribe(r.ctx, topic)
	if err != nil {
		r.t.Fatal(err)
	}
	h := r.intake.Middleware(r.handler)
	r.wg.Go(func() {
		for msg := range out {
			r.wg.Go(func() {
				defer func() { _ = recover() }()
				defer msg.Nack()
				if _, err := h(msg); err == nil {
					msg.Ack()
				}
			})
		}
	})
	synctest.Wait() // all that can be read was read, and what can run runs
}

func (r *rig) note(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event)
}

func (r *rig) gate(id string) chan error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gates[id] == nil {
		r.gates[id] = make(chan error, 1)
	}
	return r.gates[id]
}

// finish makes the handlers of ids return err, one after the other, and waits until all is at rest.
func (r *rig) finish(err error, ids ...string) {
	for _, id := range ids {
		r.gate(id) <- err
		synctest.Wait()
	}
}

// wantEvents waits until all is at rest and checks what began and returned since the last call.
func (r *rig) wantEvents(want ...string) {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.events, want) {
		r.t.Errorf("events = %v, want %v", r.events, want)
	}
	r.events = nil
}

// close ends the rig cleanly.
func (r *rig) close() {
	r.t.Helper()
	if err := r.sub.Close(); err != nil {
		r.t.Errorf("Close() = %v", err)
	}
	r.stop()
	r.wg.Wait()
}

func wantSettled(t *testing.T, want string, deliveries ...*sent) {
	t.Helper()
	for _, d := range deliveries {
		if got := d.settlement(); got != want {
			t.Errorf("%v was %s, want %s", d, got, want)
		}
	}
}

// runRouter runs a real Watermill router with one consumer handler behind an intake.
func runRouter(t *testing.T, intake *ordering.Intake, sub message.Subscriber, handler message.NoPublishHandlerFunc) *message.Router {
	t.Helper()
	router := message.NewDefaultRouter(watermill.NopLogger{})
	decorated := decorator(t, router, intake)
	router.AddMiddleware(intake.Middleware)
	router.AddConsumerHandler("handler", "orders", decorated(sub), handler)
	start(t, router)
	return router
}

// decorator returns what puts an intake before a handler's subscriber. A router wraps a subscriber before it decorates it, and nobody can
// pull from what is wrapped: so one that is pulled from is decorated here, as the runtime does it, and any other by the router.
func decorator(t *testing.T, router *message.Router, intake *ordering.Intake) func(message.Subscriber) message.Subscriber {
	t.Helper()
	if !pulling {
		router.AddSubscriberDecorators(intake.Decorate)
		return func(sub message.Subscriber) message.Subscriber { return sub }
	}
	return func(sub message.Subscriber) message.Subscriber {
		decorated, err := intake.Decorate(subscriberOf(sub))
		if err != nil {
			t.Fatal(err)
		}
		return decorated
	}
}

func start(t *testing.T, router *message.Router) {
	t.Helper()
	go func() {
		if err := router.Run(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("router.Run() = %v", err)
		}
	}()
	<-router.Running()
}

func newIntake(t *testing.T, cfg ordering.Config) *ordering.Intake {
	t.Helper()
	if cfg.Consumer == "" {
		cfg.Consumer = "test"
	}
	intake, err := ordering.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return intake
}

var errTest = errors.New("test error")

func ids(prefix string, n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%s%d", prefix, i))
	}
	return all
}
