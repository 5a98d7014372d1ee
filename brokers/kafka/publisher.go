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

	"github.com/headrace-go/headrace/classify"
)

type publisher struct {
	broker *Broker
	closed atomic.Bool
}

// PublishError tells which messages of a call of Publish were not stored. The others were.
type PublishError struct {
	Topic  string
	Of     int             // messages in the call
	Failed []FailedMessage // in the order of the call, at least one
}

// FailedMessage is a message that was not stored, or of which that is not known.
type FailedMessage struct {
	Index int    // in the call
	UUID  string // Watermill's, may be empty
	Err   error  // franz-go's kerr or kgo errors; marked permanent where another try cannot help
}

func (e *PublishError) Error() string {
	f := e.Failed[0]
	s := fmt.Sprintf("kafka: publish message %q (%d of %d) to topic %q: %v", f.UUID, f.Index+1, e.Of, e.Topic, f.Err)
	if more := len(e.Failed) - 1; more > 0 {
		s += fmt.Sprintf(" (and %d more)", more)
	}
	return s
}

// Unwrap returns the errors of the messages.
func (e *PublishError) Unwrap() []error {
	errs := make([]error, len(e.Failed))
	for i, f := range e.Failed {
		errs[i] = f.Err
	}
	return errs
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
	if err := b.ensure(context.Background(), topic); err != nil {
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
	failed := &PublishError{Topic: topic, Of: len(messages)}
	for i, err := range errs {
		if err == nil {
			continue
		}
		if errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID) {
			b.unknown(topic) // it may have been deleted: the next call looks for it
		}
		failed.Failed = append(failed.Failed, FailedMessage{Index: i, UUID: messages[i].UUID, Err: publishError(err)})
	}
	if len(failed.Failed) == 0 {
		return nil
	}
	return failed
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
