package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	stockamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/integration/bench/internal/pace"
)

var amqpSystem = system{"amqp", "HEADRACE_AMQP_URL", 40_000, []subject{
	{raw, "amqp091-go", 1, onAMQP(func(ctx context.Context, l *pace.Load, url, name string) error {
		conn, err := amqp091.Dial(url)
		if err != nil {
			return err
		}
		return errors.Join(rawAMQP(ctx, l, conn, amqpQueue(name)), conn.Close())
	})},
	{stock, "watermill-amqp", 1, onAMQP(func(ctx context.Context, l *pace.Load, url, name string) error {
		config := stockamqp.NewDurablePubSubConfig(url, amqpQueue)
		config.Consume.Qos.PrefetchCount = window
		config.TopologyBuilder = asItIs{}
		sub, err := stockamqp.NewSubscriber(config, watermill.NopLogger{})
		if err != nil {
			return err
		}
		return onRouter(ctx, l, name, sub)
	})},
	{headrace, "headrace", window, onAMQP(func(ctx context.Context, l *pace.Load, url, name string) error {
		broker, err := amqp.New(amqp.Config{URLs: []string{url}})
		if err != nil {
			return err
		}
		return errors.Join(onRuntime(ctx, l, name, broker), broker.Close())
	})},
}}

// amqpQueue is the queue that the adapter makes.
func amqpQueue(topic string) string { return topic + "/" + consumer }

func rawAMQP(ctx context.Context, l *pace.Load, conn *amqp091.Connection, queue string) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Qos(window, 0, false); err != nil {
		return err
	}
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, open := <-in:
			if !open {
				return errors.New("the channel was closed")
			}
			l.Handle()
			if err := d.Ack(false); err != nil {
				return err
			}
		}
	}
}

// asItIs leaves the topology alone.
type asItIs struct{}

func (asItIs) BuildTopology(*amqp091.Channel, stockamqp.BuildTopologyParams, stockamqp.Config, watermill.LoggerAdapter) error {
	return nil
}
func (asItIs) ExchangeDeclare(*amqp091.Channel, string, stockamqp.Config) error { return nil }

// onAMQP has the adapter make an exchange and a queue, and deletes them.
func onAMQP(run func(ctx context.Context, l *pace.Load, url, name string) error) func(context.Context, string, int) (topic, error) {
	return func(ctx context.Context, address string, n int) (topic, error) {
		name := topicName()
		broker, err := amqp.New(amqp.Config{URLs: []string{address}})
		if err == nil {
			err = errors.Join(fillBroker(ctx, broker, name, n), broker.Close())
		}
		if err != nil {
			return topic{}, errors.Join(err, removeAMQP(address, name))
		}
		return topic{
			run:    func(ctx context.Context, l *pace.Load) error { return run(ctx, l, address, name) },
			remove: func() error { return removeAMQP(address, name) },
		}, nil
	}
}

func removeAMQP(url, name string) error {
	conn, err := amqp091.Dial(url)
	if err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDelete(amqpQueue(name), false, false, false)
	}
	if err == nil {
		err = ch.ExchangeDelete(name, false, false)
	}
	return errors.Join(err, conn.Close())
}
