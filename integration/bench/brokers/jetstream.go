package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	stocknats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/integration/bench/internal/pace"
)

var jetstreamSystem = system{"jetstream", "HEADRACE_NATS_URL", 150_000, []subject{
	{raw, "nats.go pull consumer", 1, onJetstream(func(ctx context.Context, l *pace.Load, name string, conn *nats.Conn) error {
		js, err := natsjs.New(conn)
		if err != nil {
			return err
		}
		c, err := js.CreateConsumer(ctx, name, natsjs.ConsumerConfig{Durable: "raw", AckPolicy: natsjs.AckExplicitPolicy, MaxAckPending: window})
		if err != nil {
			return err
		}
		in, err := c.Messages(natsjs.PullMaxMessages(window))
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, in.Stop)()
		for {
			m, err := in.Next()
			if errors.Is(err, natsjs.ErrMsgIteratorClosed) {
				return nil
			}
			if err != nil {
				return err
			}
			l.Handle()
			if err := m.Ack(); err != nil {
				return err
			}
		}
	})},
	{stock, "watermill-nats", 1, onJetstream(func(ctx context.Context, l *pace.Load, name string, conn *nats.Conn) error {
		sub, err := stocknats.NewSubscriber(stocknats.SubscriberConfig{
			URL:              conn.ConnectedUrl(), // a connection of its own: it closes it
			QueueGroupPrefix: "stock",
			JetStream: stocknats.JetStreamConfig{
				DurablePrefix:    "stock",
				SubscribeOptions: []nats.SubOpt{nats.DeliverAll(), nats.AckExplicit(), nats.ManualAck(), nats.MaxAckPending(window)},
			},
		}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		return onRouter(ctx, l, name, sub)
	})},
	{headrace, "headrace", window, onJetstream(func(ctx context.Context, l *pace.Load, name string, conn *nats.Conn) error {
		broker, err := jetstream.New(jetstream.Config{Conn: conn})
		if err != nil {
			return err
		}
		return errors.Join(onRuntime(ctx, l, name, broker), broker.Close())
	})},
}}

// onJetstream makes streams of one subject each, and deletes them.
func onJetstream(run func(ctx context.Context, l *pace.Load, name string, conn *nats.Conn) error) func(context.Context, string, int) (topic, error) {
	return func(ctx context.Context, address string, n int) (topic, error) {
		conn, err := nats.Connect(address)
		if err != nil {
			return topic{}, err
		}
		js, err := natsjs.New(conn)
		if err != nil {
			conn.Close()
			return topic{}, err
		}
		name := topicName()
		remove := func() error {
			defer conn.Close()
			return js.DeleteStream(context.WithoutCancel(ctx), name)
		}
		broker, err := jetstream.New(jetstream.Config{Conn: conn})
		if err == nil {
			err = errors.Join(fillBroker(ctx, broker, name, n), broker.Close())
		}
		if err != nil {
			return topic{}, errors.Join(err, remove())
		}
		return topic{
			run:    func(ctx context.Context, l *pace.Load) error { return run(ctx, l, name, conn) },
			remove: remove,
		}, nil
	}
}
