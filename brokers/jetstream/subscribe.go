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
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// subscribe makes sure of the stream and the durable, which is I/O, and opens a subscription. It also ends, which is logged, when the
// durable was deleted on the server, or the stream, even if that was made again. Acks that were given by its end reach the server, unless the
// stream is another one; what was not settled is given back. So its context has to last as long as anybody holds a delivery.
func (b *Broker) subscribe(ctx context.Context, want brokers.Subscription, topic string) (adapter.Opened, error) {
	n, err := b.open(ctx, want, topic)
	if err != nil {
		return adapter.Opened{}, err
	}
	return adapter.Opened{Out: n.out, Run: n.run, Abandon: n.abandon}, nil
}

// open prepares a subscription and takes over what dead members left.
func (b *Broker) open(ctx context.Context, want brokers.Subscription, topic string) (_ *subscription, err error) {
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
		seen:        make(chan found, 1),
		fetched:     make(map[uint64]*nats.Msg),
		bySeq:       make(map[uint64]*hold),
		unconfirmed: make(map[string]*hold),
		out:         make(chan *message.Message),
		pull:        pull{subject: b.apiPrefix() + "CONSUMER.MSG.NEXT." + info.Stream + "." + info.Name},
	}
	s.pull.obey(info.Config)
	if kept, said := stream.CachedInfo().Config.MaxAge, max(b.config.MaxAge, 0); kept != said {
		s.log.Warn("jetstream: the stream was not made by this Config: the retention margin, and what is compared with the inbox's memory, go by Config.MaxAge (0: for ever)",
			"stream_max_age", kept, "config_max_age", said)
	}
	created := stream.CachedInfo().Created
	s.lookup = func(ctx context.Context) found { return b.lookup(ctx, created, info) }
	if s.ackWait == expedite {
		s.ackWait = b.config.AckWait // a member takes over, or has died of it
	}
	s.status = b.conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer func() {
		if err != nil {
			s.abandon()
		}
	}()
	if s.sub, err = b.conn.Subscribe(s.inbox+".*", s.receive); err == nil {
		// Never drop: what is on the way is bounded by the pull request.
		err = s.sub.SetPendingLimits(-1, -1)
	}
	if err == nil {
		s.sub.SetClosedHandler(func(string) { close(s.ended) })
	}
	if err != nil {
		return nil, fmt.Errorf("jetstream: subscribe to topic %q for consumer %q: %w", topic, want.Consumer, err)
	}
	start := &start{subscription: s, broker: b, stream: stream, durable: durable}
	if err := start.run(ctx); err != nil {
		return nil, fmt.Errorf("jetstream: start consumer %q on durable %q of stream %q: %w", want.Consumer, info.Name, info.Stream, err)
	}
	return s, nil
}

// lookup looks whether the stream that was created then, and its durable, are still there. A durable that was made again brings what it has
// brought before, and loses nothing; its time does not tell, for servers before 2.10 give it another one when they restart.
func (b *Broker) lookup(ctx context.Context, created time.Time, durable *jetstream.ConsumerInfo) found {
	var now jetstream.Consumer
	stream, err := b.js.Stream(ctx, durable.Stream)
	if err == nil {
		if !stream.CachedInfo().Created.Equal(created) {
			return found{err: fmt.Errorf("jetstream: stream %q: %w", durable.Stream, errOtherStream)}
		}
		now, err = stream.Consumer(ctx, durable.Name)
	}
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound):
		return found{err: fmt.Errorf("jetstream: durable %q of stream %q was deleted: %w", durable.Name, durable.Stream, err)}
	case err != nil:
		return found{}
	}
	return found{durable: now.CachedInfo()}
}

func (b *Broker) apiPrefix() string {
	if b.config.Domain != "" {
		return "$JS." + b.config.Domain + ".API."
	}
	return jetstream.DefaultAPIPrefix
}
