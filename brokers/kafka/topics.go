package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

var errNoTopic = errors.New("it does not exist, and Config.CheckOnly forbids to make it")

// knownTopic is what is known of a topic that was published to.
type knownTopic struct {
	there      bool
	id, former kadm.TopicID // of the topic that the producer publishes to, and of the one before; zeros: not known
}

// ensureOnce is ensure for topics that are published to. It remembers the answer. franz-go publishes nothing to a topic that was made anew
// before the old one is purged.
func (b *Broker) ensureOnce(ctx context.Context, topic string) error {
	b.mu.Lock()
	there := b.topics[topic].there
	b.mu.Unlock()
	if there {
		return nil
	}
	id, err := b.ensure(ctx, topic)
	if err != nil {
		return err
	}
	b.purging.Lock()
	defer b.purging.Unlock()
	b.mu.Lock()
	known := b.topics[topic]
	b.mu.Unlock()
	none := kadm.TopicID{}
	if id != none && id == known.former {
		return nil // an old answer
	}
	if id != none && known.id != none && id != known.id {
		// Once for each: the sequence numbers begin again, and where the cluster has seen them before it drops the records and
		// says that they are stored.
		b.producer.PurgeTopicsFromClient(topic)
		known.former = known.id
	}
	if id != none {
		known.id = id
	}
	known.there = true
	b.mu.Lock()
	b.topics[topic] = known
	b.mu.Unlock()
	return nil
}

// unknown forgets that topic exists: the next call of ensureOnce looks for it.
func (b *Broker) unknown(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.topics[topic]
	known.there = false
	b.topics[topic] = known
}

// ensure makes sure that topic exists. The id that it returns is zeros if the cluster does not tell.
func (b *Broker) ensure(ctx context.Context, topic string) (kadm.TopicID, error) {
	ctx, cancel := context.WithTimeout(ctx, b.config.DialTimeout)
	defer cancel()
	id, err := b.lookUp(ctx, topic)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		id, err = b.create(ctx, topic)
	}
	if err != nil {
		return id, fmt.Errorf("topic %q: %w", topic, err)
	}
	return id, nil
}

func (b *Broker) lookUp(ctx context.Context, topic string) (kadm.TopicID, error) {
	// What the admin client remembers may be older than the topic; with authorized operations it asks.
	details, err := b.admin.ListTopics(kadm.WithAuthorizedOps(ctx), topic)
	if err != nil {
		return kadm.TopicID{}, fmt.Errorf("look up: %w", err)
	}
	return details[topic].ID, details[topic].Err
}

func (b *Broker) create(ctx context.Context, topic string) (kadm.TopicID, error) {
	if b.config.CheckOnly {
		return kadm.TopicID{}, errNoTopic
	}
	configs := make(map[string]*string, len(b.config.TopicConfigs))
	for k, v := range b.config.TopicConfigs {
		configs[k] = &v
	}
	made, err := b.admin.CreateTopic(ctx, b.config.Partitions, b.config.Replicas, configs, topic)
	if errors.Is(err, kerr.TopicAlreadyExists) {
		id, err := b.lookUp(ctx, topic)
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			err = nil // not everybody knows of it yet
		}
		return id, err
	}
	return made.ID, err
}

// checkTopic ends the subscription if topic, whose fetches say that there is none of its id, is another one now: franz-go reads
// that only after a new start.
func (m *member) checkTopic(ctx context.Context, topic string) {
	ctx, cancel := context.WithTimeout(ctx, m.config.DialTimeout)
	defer cancel()
	id, err := m.broker.lookUp(ctx, topic)
	was, what := m.idOf(topic), "deleted and made anew"
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		if m.config.isPattern(m.topic) {
			return // franz-go forgets it
		}
		what = "deleted"
	case err != nil || id == was:
		return // it will be said again, if it stays so
	case was == kadm.TopicID{}: // the group has refused to tell where to begin
		what = "deleted, or made anew,"
	}
	err = fmt.Errorf("kafka: topic %q was %s under the subscription of consumer %q", topic, what, m.consumer)
	m.log.Error("kafka: the subscription ends", "error", err)
	m.end(err)
}

// idOf returns the id of topic as it was fetched, or zeros.
func (m *member) idOf(topic string) (id kadm.TopicID) {
	for _, a := range m.find(nil) {
		if a.topic != topic {
			continue
		}
		a.mu.Lock()
		if a.topicID != [16]byte{} {
			id = a.topicID
		}
		a.mu.Unlock()
	}
	return id
}
