package runtime

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

// WatermillConfig describes stock Watermill parts to [Watermill].
type WatermillConfig struct {
	// Subscriber makes the subscriber of one consumer: with a consumer group named s.Consumer where
	// the adapter has groups. The runtime closes what it returns, after the drain. Required to consume.
	Subscriber func(s brokers.Subscription) (message.Subscriber, error)

	// Publisher publishes; it returns nil only when the broker has confirmed. The caller closes it,
	// after Run has returned. Required: dead letters go through it.
	Publisher message.Publisher

	// Delivery tells where a message came from, by what the adapter put into its context: key, partition,
	// offset. Without it a lane is found by ce_partitionkey or ce_subject, and a message without an id
	// of its own is refused by HandleTx. Optional.
	Delivery func(topic string, m *message.Message) *brokers.Delivery

	// Capabilities declares what the adapter can do. What is declared is not checked: a claim that is
	// not true loses order or messages. FanOut says that two consumers of one topic each get all.
	Capabilities brokers.Capabilities
}

// Watermill makes a broker of stock Watermill parts, such as watermill-kafka or gochannel. Every
// guarantee of the runtime holds as far as the adapter's own do; the README lists what they limit.
func Watermill(cfg WatermillConfig) (brokers.Broker, error) {
	var errs []error
	if cfg.Subscriber == nil {
		errs = append(errs, errors.New("runtime.WatermillConfig.Subscriber is nil: want a function that makes a consumer's subscriber"))
	}
	if cfg.Publisher == nil {
		errs = append(errs, errors.New("runtime.WatermillConfig.Publisher is nil: dead letters need one"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return stock{cfg}, nil
}

type stock struct{ config WatermillConfig }

func (s stock) Capabilities() brokers.Capabilities { return s.config.Capabilities }

func (s stock) Subscriber(sub brokers.Subscription) (message.Subscriber, error) {
	in, err := s.config.Subscriber(sub)
	if err == nil && in == nil {
		err = errors.New("WatermillConfig.Subscriber returned nil")
	}
	if err != nil {
		return nil, fmt.Errorf("open the subscriber of consumer %s: %w", sub.Consumer, err)
	}
	if s.config.Delivery == nil {
		return in, nil
	}
	return message.MessageTransformSubscriberDecorator(func(m *message.Message) {
		if d := s.config.Delivery(sub.Topic, m); d != nil {
			m.SetContext(brokers.WithDelivery(m.Context(), d))
		}
	})(in)
}

func (s stock) Publisher() (message.Publisher, error) { return borrowed{s.config.Publisher}, nil }

func (stock) Close() error { return nil }

// borrowed is a publisher whose owner closes it.
type borrowed struct{ message.Publisher }

func (borrowed) Close() error { return nil }
