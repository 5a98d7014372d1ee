package runtime

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/ordering"
	"github.com/headrace-go/headrace/poison"
)

// source is one subscription of a consumer. All of a consumer share its intake and its lanes; but parked messages that
// were released have lanes of their own, since the database's row keeps them in order with the live ones of their key.
type source struct {
	name       string // of the router's handler
	topic      string
	consumer   string             // as the broker knows it; "": it is not the broker's
	subscriber message.Subscriber // decorated by the intake
	brings     bool               // messages that were kept before: redriven, delayed or parked ones
}

// openSources opens the consumer's subscriptions: its topic, its released messages, and its redrive topic. Nothing is read yet.
func (l *line) openSources(window int) error {
	c := l.consumer
	own := c.config.Key != nil
	if err := l.open(brokers.Subscription{Consumer: c.config.Name, Topic: c.config.Topic, Window: window, OwnKeys: own}, nil); err != nil {
		return err
	}
	if err := l.openParked(); err != nil {
		return err
	}
	if !c.takesRedrives() {
		return nil
	}
	topic := poison.RedriveTopic(c.config.Name)
	// A group of its own: where members of one group read different topics, a broker has to move more at each
	// change of them.
	return l.open(brokers.Subscription{Consumer: topic, Topic: topic, Window: min(window, redriveWindow), OwnKeys: own},
		message.MessageTransformSubscriberDecorator(poison.Restore))
}

// redriveWindow bounds the redriven deliveries that are held at once: they come beside the live ones.
const redriveWindow = 64

// open opens one subscription, which the intake decorates outside of decorate.
func (l *line) open(s brokers.Subscription, decorate message.SubscriberDecorator) error {
	sub, err := l.consumer.runtime.config.Broker.Subscriber(s)
	if err != nil {
		return fmt.Errorf("open the subscription to %s: %w", s.Topic, err)
	}
	if decorate != nil {
		if sub, err = decorate(sub); err != nil {
			return fmt.Errorf("decorate the subscription to %s: %w", s.Topic, err)
		}
	}
	if sub, err = l.intake.Decorate(sub); err != nil {
		return err
	}
	l.sources = append(l.sources, source{name: s.Consumer, topic: s.Topic, consumer: s.Consumer, subscriber: sub, brings: decorate != nil})
	return nil
}

// takesRedrives tells whether the consumer reads a redrive topic.
func (c *Consumer) takesRedrives() bool {
	return c.config.Redrive != RedriveOff && !c.readsDeadLetters()
}

// register makes all consumers known to a broker that wants to know them before it delivers.
func (u *run) register(ctx context.Context) error {
	broker, ok := u.runtime.config.Broker.(brokers.Registrar)
	if !ok {
		return nil
	}
	var topics []string
	consumers := map[string][]string{}
	for _, l := range u.lines {
		for _, s := range l.sources {
			if s.consumer == "" {
				continue
			}
			if consumers[s.topic] == nil {
				topics = append(topics, s.topic)
			}
			consumers[s.topic] = append(consumers[s.topic], s.consumer)
		}
	}
	for _, topic := range topics {
		if err := broker.Register(ctx, topic, consumers[topic]...); err != nil {
			return fmt.Errorf("register the consumers of %s: %w", topic, err)
		}
	}
	return nil
}

// closeSources closes the subscriptions, which have ended.
func (l *line) closeSources() (errs []error) {
	for _, s := range l.sources {
		err := s.subscriber.Close()
		if held := new(ordering.DrainError); errors.As(err, &held) && !onlyUnclosed(err) {
			continue // the drain has reported it
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("consumer %s: close the subscription to %s: %w", l.consumer.config.Name, s.topic, err))
		}
	}
	return errs
}
