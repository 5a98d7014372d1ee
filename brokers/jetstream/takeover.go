package jetstream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/brokers"
)

// A process that is killed leaves deliveries un-acked at the server, which keeps them for AckWait and sends newer messages
// of the same keys meanwhile. So a subscription that starts, finds such deliveries and no living member of its
// consumer, takes them over: it makes the server give them up at once, and hands over nothing until it has them all.
const (
	presencePrefix = "_HEADRACE.alive."
	presenceWait   = 500 * time.Millisecond

	// With expedite as the AckWait all old deliveries are overdue. The server looks 100 ms after the change; if it is late, they
	// come after AckWait.
	expedite     = 10 * time.Millisecond
	expediteWait = 200 * time.Millisecond

	takeoverSlack = 5 * time.Second
)

// takeover waits for the deliveries of a dead member.
type takeover struct {
	missing  int    // how many have not come
	upTo     uint64 // the last stream sequence that was delivered before
	deadline time.Time
}

func (t *takeover) got(meta *nats.MsgMetadata) {
	if t.missing > 0 && meta.Sequence.Stream <= t.upTo {
		t.missing--
	}
}

// takeoverDone tells whether deliveries can be handed over, and puts them in order when that begins.
func (s *subscription) takeoverDone() bool {
	t := &s.takeover
	if t.deadline.IsZero() {
		return true
	}
	late := !time.Now().Before(t.deadline)
	if t.missing > 0 && len(s.queue) < s.window && !late {
		return false
	}
	if late && t.missing > 0 {
		s.log.Warn("jetstream: deliveries of a former member did not come again; another member may have them", "missing", t.missing)
	}
	s.takeover = takeover{}
	sortBySeq(s.queue)
	return true
}

// subscribe prepares a subscription and takes over what a dead member left.
func (b *Broker) subscribe(ctx context.Context, want brokers.Subscription, topic string) (_ *subscription, err error) {
	stream, err := b.provision(ctx, topic)
	if err != nil {
		return nil, err
	}
	durable, err := b.durable(ctx, stream, want.Consumer, topic, want.Window)
	if err != nil {
		return nil, err
	}
	info := durable.CachedInfo()
	s := &subscription{
		config:      &b.config,
		conn:        b.conn,
		log:         b.config.Logger.With("topic", topic, "consumer", want.Consumer, "stream", info.Stream, "durable", info.Name),
		topic:       topic,
		incarnation: stream.CachedInfo().Created.UTC().Format(time.RFC3339Nano),
		window:      want.Window,
		ackWait:     info.Config.AckWait,
		inbox:       b.conn.NewInbox(),
		kick:        make(chan struct{}, 1),
		ended:       make(chan struct{}),
		gone:        make(chan error, 1),
		bySeq:       make(map[uint64]*hold),
		unconfirmed: make(map[string]*hold),
		out:         make(chan *message.Message),
		pull: pull{
			subject:    b.apiPrefix() + "CONSUMER.MSG.NEXT." + info.Stream + "." + info.Name,
			maxBatch:   info.Config.MaxRequestBatch,
			maxExpires: info.Config.MaxRequestExpires,
		},
	}
	s.lookup = func(ctx context.Context) error {
		_, err := b.js.Consumer(ctx, info.Stream, info.Name)
		if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("jetstream: durable %q of stream %q was deleted: %w", info.Name, info.Stream, err)
		}
		return nil
	}

	alive := presencePrefix + info.Stream + "." + info.Name
	if err := s.takeOver(ctx, b, stream, durable, alive); err != nil {
		return nil, err
	}
	s.status = b.conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer func() {
		if err != nil {
			s.unsubscribe()
		}
	}()
	if s.sub, err = b.conn.Subscribe(s.inbox+".*", s.receive); err == nil {
		// Never drop: what is on the way is bounded by the pull request.
		err = s.sub.SetPendingLimits(-1, -1)
	}
	if err == nil {
		s.sub.SetClosedHandler(func(string) { close(s.ended) })
		s.presence, err = b.conn.Subscribe(alive, func(m *nats.Msg) { _ = m.Respond(nil) }) // whoever asks will ask again
	}
	if err != nil {
		return nil, fmt.Errorf("jetstream: subscribe to topic %q for consumer %q: %w", topic, want.Consumer, err)
	}
	return s, nil
}

// takeOver prepares to take over what a dead member left, if there is any.
func (s *subscription) takeOver(ctx context.Context, b *Broker, stream jetstream.Stream, durable jetstream.Consumer, alive string) error {
	info, err := durable.Info(ctx)
	if err != nil {
		return fmt.Errorf("jetstream: ask for durable %q of stream %q: %w", durable.CachedInfo().Name, durable.CachedInfo().Stream, err)
	}
	if info.NumAckPending == 0 {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, presenceWait)
	defer cancel()
	if _, err := b.conn.RequestWithContext(asking, alive, nil); !errors.Is(err, nats.ErrNoResponders) {
		return nil // a member lives, or nobody can tell
	}
	s.takeover = takeover{
		missing:  info.NumAckPending,
		upTo:     info.Delivered.Stream,
		deadline: time.Now().Add(s.ackWait + takeoverSlack),
	}
	if b.config.CheckOnly {
		return nil // they come after AckWait
	}
	config := info.Config
	config.AckWait = expedite
	if _, err := stream.UpdateConsumer(ctx, config); err != nil {
		return fmt.Errorf("jetstream: take over the deliveries of durable %q: %w", info.Name, err)
	}
	select {
	case <-time.After(expediteWait):
	case <-ctx.Done():
	}
	config.AckWait = s.ackWait
	// Whatever happens to ctx, the durable must not stay like that.
	restore, cancelRestore := context.WithTimeout(context.WithoutCancel(ctx), b.config.CloseTimeout)
	defer cancelRestore()
	if _, err := stream.UpdateConsumer(restore, config); err != nil {
		return fmt.Errorf("jetstream: give durable %q its AckWait of %v back: %w", info.Name, s.ackWait, err)
	}
	return nil
}

func (b *Broker) apiPrefix() string {
	if b.config.Domain != "" {
		return "$JS." + b.config.Domain + ".API."
	}
	return jetstream.DefaultAPIPrefix
}
