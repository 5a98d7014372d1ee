package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
)

type publisher struct {
	broker *Broker
	closed atomic.Bool
}

// Publish is described at [Broker.Publisher].
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	b := p.broker
	switch {
	case p.closed.Load() || b.subs.Closed():
		return fmt.Errorf("kafka: publish to topic %q: publisher: %w", topic, ErrClosed)
	case topic == "":
		return classify.Permanent(errors.New("kafka: publish: the topic's name is empty"))
	case len(messages) == 0:
		return nil
	}
	for i, m := range messages {
		if m == nil {
			return classify.Permanent(fmt.Errorf("kafka: publish to topic %q: message %d is nil", topic, i))
		}
	}
	if err := b.ensureOnce(context.Background(), topic); err != nil {
		return fmt.Errorf("kafka: publish: %w", err)
	}
	errs := make([]error, len(messages))
	var wg sync.WaitGroup
	wg.Add(len(messages))
	for i, m := range messages {
		b.producer.Produce(m.Context(), b.config.encode(topic, m), func(_ *kgo.Record, err error) {
			errs[i] = err
			wg.Done()
		})
	}
	wg.Wait()
	for i, err := range errs {
		if errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID) {
			b.unknown(topic) // it may have been deleted, or made anew: the next call looks for it
		}
		errs[i] = publishError(err)
	}
	return brokers.NewPublishError("kafka", topic, messages, errs)
}

// publishError marks what another try cannot mend.
func publishError(err error) error {
	for _, permanent := range []error{
		kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidTopicException, kerr.InvalidRecord,
	} {
		if errors.Is(err, permanent) {
			return classify.Permanent(err)
		}
	}
	return err
}

// Close makes further calls of Publish fail. Those that are running go on. It is idempotent.
func (p *publisher) Close() error {
	p.closed.Store(true)
	return nil
}
