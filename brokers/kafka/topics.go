package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

var errNoTopic = errors.New("it does not exist, and Config.CheckOnly forbids to make it")

// ensure makes sure that topic exists. It remembers the answer.
func (b *Broker) ensure(ctx context.Context, topic string) error {
	b.mu.Lock()
	_, known := b.topics[topic]
	b.mu.Unlock()
	if known {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, b.config.DialTimeout)
	defer cancel()
	// What the admin client remembers may be older than the topic; with authorized operations it asks.
	details, err := b.admin.ListTopics(kadm.WithAuthorizedOps(ctx), topic)
	if err != nil {
		return fmt.Errorf("look up topic %q: %w", topic, err)
	}
	if err = details[topic].Err; errors.Is(err, kerr.UnknownTopicOrPartition) {
		err = b.create(ctx, topic)
	}
	if err != nil {
		return fmt.Errorf("topic %q: %w", topic, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topics[topic] = struct{}{}
	return nil
}

func (b *Broker) create(ctx context.Context, topic string) error {
	if b.config.CheckOnly {
		return errNoTopic
	}
	configs := make(map[string]*string, len(b.config.TopicConfigs))
	for k, v := range b.config.TopicConfigs {
		configs[k] = &v
	}
	_, err := b.admin.CreateTopic(ctx, b.config.Partitions, b.config.Replicas, configs, topic)
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return nil
	}
	return err
}

// unknown forgets that topic exists: the next call looks for it.
func (b *Broker) unknown(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.topics, topic)
}
