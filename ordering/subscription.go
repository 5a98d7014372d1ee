package ordering

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/internal/flight"
)

// sweepInterval is how often a full subscription looks for deliveries that were taken away while
// they wait: behind a stuck handler, they would keep the window full for ever.
const sweepInterval = 100 * time.Millisecond

// subscription is one Subscribe call. Its goroutine runs read; the fields below source are guarded by
// the intake's mutex unless they are channels.
type subscription struct {
	intake *Intake
	topic  string
	bare   brokers.Delivery // for messages that come without one
	source

	// out has room for all that can run, so that sending never blocks.
	out chan *message.Message
	// cancel ends the inner subscription, and with it the contexts of its deliveries.
	cancel context.CancelCauseFunc
	// detach ends the watch over the context of Subscribe.
	detach func() bool

	room    chan struct{} // tells read, when it is blocked, to look again; capacity 1
	blocked bool

	pull    brokers.Pull // instead of a channel; or nil
	pulling sync.Mutex   // held from a call of pull.Next until its message is in its lane

	stop      chan struct{} // closed when nothing more is to be started
	quiet     chan struct{} // closed when nothing is held after that
	isQuiet   bool
	ended     chan struct{} // closed when read has returned and nothing is held
	readDone  chan struct{} // closed when read has returned
	isDone    bool
	outClosed bool
	abandoned bool // a drain gave up on it
}

func (in *Intake) newSubscription(topic string) *subscription {
	return &subscription{
		intake:   in,
		topic:    topic,
		bare:     brokers.Delivery{Topic: topic, Partition: -1, Offset: -1},
		source:   source{window: in.cfg.Window},
		out:      make(chan *message.Message, in.cfg.Concurrency),
		room:     make(chan struct{}, 1),
		stop:     make(chan struct{}),
		quiet:    make(chan struct{}),
		ended:    make(chan struct{}),
		readDone: make(chan struct{}),
	}
}

// read brings messages from the inner subscription into the lanes, and always to its end: an adapter
// may hang in Close until somebody takes its last message.
func (s *subscription) read(inner <-chan *message.Message, cancelled <-chan struct{}) {
	defer s.sweepRest()
	sweep := time.NewTimer(sweepInterval)
	defer sweep.Stop()

	var late *message.Message
	for room := s.checkRoom(); ; {
		if !room {
			if !s.awaitRoom(sweep) {
				break
			}
			room = s.checkRoom()
			continue
		}
		select {
		case msg, ok := <-inner:
			if !ok {
				return
			}
			if msg == nil { // watermill-amqp can deliver one when the connection is lost
				continue
			}
			var admitted bool
			if _, admitted, room = s.admit(msg, false); !admitted {
				late = msg
			}
			if late == nil {
				continue
			}
		case <-s.stop:
		}
		break
	}

	// Nothing is read while handlers finish: what is given back now could come again at once, and be
	// given back again, in a hot loop (fault S5), or overtake in another process what still runs here.
	<-cancelled
	if late != nil {
		s.release(late)
	}
	for msg := range inner {
		if msg != nil {
			s.release(msg)
		}
	}
}

// awaitRoom blocks until there may be room. It returns false when the subscription is stopped.
func (s *subscription) awaitRoom(sweep *time.Timer) bool {
	for {
		select {
		case <-s.room:
			return true
		case <-s.stop:
			return false
		case <-sweep.C:
			s.intake.dropEnded()
			sweep.Reset(sweepInterval)
		}
	}
}

// checkRoom reports whether one more may be read. If not, room will be signalled.
func (s *subscription) checkRoom() bool {
	s.intake.mu.Lock()
	defer s.intake.mu.Unlock()
	return s.hasRoom()
}

// hasRoom is checkRoom with in.mu held.
func (s *subscription) hasRoom() bool {
	room := s.intake.lanes.room(&s.source)
	s.blocked = !room
	return room
}

// admit takes msg into its lane. It refuses it if the subscription was stopped meanwhile, and reports
// whether there is room for another one. If a successor is wanted it returns one that may run, if there is any.
func (s *subscription) admit(msg *message.Message, want bool) (successor *delivery, admitted, room bool) {
	in := s.intake
	d := s.newDelivery(msg)
	k, ordered := laneOf(d.Delivery, s.topic, d.Key)

	in.mu.Lock()
	defer in.mu.Unlock()
	if s.stopped {
		return nil, false, false
	}
	in.lanes.admit(d, k, ordered)
	if want {
		successor = in.successor(s)
	}
	in.dispatch()
	return successor, true, s.hasRoom()
}

func (s *subscription) newDelivery(msg *message.Message) *delivery {
	ctx := msg.Context()
	d := &delivery{
		Flight: flight.Flight{
			Context:  ctx,
			Original: msg,
			View:     message.Message{UUID: msg.UUID, Metadata: msg.Metadata, Payload: msg.Payload},
			Delivery: brokers.DeliveryOf(ctx),
			Topic:    s.topic,
			Consumer: s.intake.cfg.Consumer,
		},
		sub: s,
	}
	if s.intake.cfg.Key == nil {
		d.Key = defaultKey(d.Delivery, msg)
	} else {
		d.Key = s.customKey(msg, d.Delivery)
	}
	if d.Delivery == nil {
		d.Delivery = &s.bare
	}
	d.Place = d
	d.View.SetContext(d)
	return d
}

// customKey survives a panic: a message that Key cannot read must reach the stages that can tell so.
func (s *subscription) customKey(msg *message.Message, bd *brokers.Delivery) (key string) {
	defer func() {
		if p := recover(); p != nil {
			key = defaultKey(bd, msg)
			s.intake.cfg.Logger.ErrorContext(msg.Context(), "ordering: Config.Key panicked; the default key is used",
				"consumer", s.intake.cfg.Consumer, "topic", s.topic, "message", msg.UUID, "panic", p)
		}
	}()
	return s.intake.cfg.Key(msg)
}

// release gives back a message that no lane has seen.
func (s *subscription) release(msg *message.Message) { s.newDelivery(msg).Release() }

func (s *subscription) readEnded() {
	s.intake.mu.Lock()
	defer s.intake.mu.Unlock()
	s.isDone = true
	close(s.readDone)
	s.changed()
}

// sweepRest gives back what the broker took away with a subscription that ended unasked: during a pause nothing else would look at
// it, and nobody would notice the end.
func (s *subscription) sweepRest() {
	s.readEnded()
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-s.stop:
			return
		default:
		}
		s.intake.dropEnded()
		select {
		case <-s.ended:
		case <-s.stop:
		case <-sweep.C:
		}
	}
}

// wake tells read to look for room. in.mu is held.
func (s *subscription) wake() {
	if s.blocked && s.intake.lanes.room(&s.source) {
		s.blocked = false
		select {
		case s.room <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// halt lets nothing more start. in.mu is held; what it drops is for takeDropped.
func (s *subscription) halt() {
	if s.stopped {
		return
	}
	in := s.intake
	// What the router has not taken yet comes first: it is at the head of its lane.
	for {
		select {
		case view := <-s.out:
			in.lanes.recall(deliveryOf(view.Context()))
			continue
		default:
		}
		break
	}
	in.lanes.stop(&s.source)
	close(s.stop)
	in.dispatch() // others may have been behind what was dropped
	s.changed()
}

// changed is called when held or isDone may have changed. in.mu is held.
func (s *subscription) changed() {
	if s.held == 0 && s.stopped && !s.isQuiet {
		s.isQuiet = true
		close(s.quiet)
		s.cancel(errDrained)
	}
	if s.held == 0 && s.isDone {
		s.end()
		return
	}
	s.wake()
}

// end closes what is to be closed at the end, once. in.mu is held.
func (s *subscription) end() {
	if _, open := s.intake.subs[s]; !open {
		return
	}
	delete(s.intake.subs, s)
	s.closeOut()
	s.cancel(errDrained)
	s.detach()
	close(s.ended)
}

// closeOut ends the router's loop. in.mu is held.
func (s *subscription) closeOut() {
	if !s.outClosed {
		s.outClosed = true
		close(s.out)
	}
}

// subscriber is what Decorate returns.
type subscriber struct {
	intake *Intake
	inner  message.Subscriber

	mu     sync.Mutex
	closed bool
	subs   []*subscription // open or not; those that have ended are taken out by Subscribe
}

// Subscribe opens the inner subscription under a context that outlives ctx.
func (sb *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in := sb.intake
	s := in.newSubscription(topic)
	workCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	s.cancel = cancel

	if err := sb.register(s); err != nil {
		cancel(err)
		return nil, fmt.Errorf("ordering: subscribe %q to %q: %w", in.cfg.Consumer, topic, err)
	}
	if err := sb.openInner(workCtx, s); err != nil {
		s.readEnded()
		return nil, fmt.Errorf("ordering: subscribe %q to %q: %w", in.cfg.Consumer, topic, err)
	}

	// The signal that stops the router must not end the subscription: a delivery accepted just before
	// it would be handled but could no longer be acked (fault S1).
	detach := context.AfterFunc(ctx, func() { in.drainAlone(s) })
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, open := in.subs[s]; open {
		s.detach = detach
	} else {
		detach()
	}
	return s.out, nil
}

// openInner opens the inner subscription and begins to read it.
func (sb *subscriber) openInner(ctx context.Context, s *subscription) error {
	if puller, ok := sb.inner.(brokers.Puller); ok {
		pull, err := puller.Pull(ctx, s.topic)
		if err != nil {
			return err
		}
		s.intake.mu.Lock()
		s.pull = pull
		s.intake.mu.Unlock()
		go s.readPull(ctx.Done())
		return nil
	}
	inner, err := sb.inner.Subscribe(ctx, s.topic)
	if err != nil {
		return err
	}
	go s.read(inner, ctx.Done())
	return nil
}

// register makes s known to the intake and to sb, so that a drain or a close from now on ends it.
func (sb *subscriber) register(s *subscription) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.closed {
		return errors.New("the subscriber is closed")
	}
	in := s.intake
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.draining {
		return errors.New("the intake is drained")
	}
	s.detach = func() bool { return false }
	in.subs[s] = struct{}{}
	open := sb.subs[:0]
	for _, other := range sb.subs {
		if _, ok := in.subs[other]; ok {
			open = append(open, other)
		}
	}
	clear(sb.subs[len(open):])
	sb.subs = append(open, s)
	return nil
}

// Close drains the subscriptions that were made through this subscriber, then closes the inner one.
// It is idempotent; a later call returns nil, after the first one has returned.
func (sb *subscriber) Close() error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.closed {
		return nil
	}
	sb.closed = true
	in := sb.intake
	report := in.settleHeldWithin(in.cfg.DrainTimeout, sb.subs)
	closeErr := sb.inner.Close()
	if closeErr != nil {
		closeErr = fmt.Errorf("ordering: close the subscriber of %q: %w", in.cfg.Consumer, closeErr)
	}
	if err := in.awaitEnd(report, sb.subs); err != nil {
		return errors.Join(err, closeErr)
	}
	return closeErr
}
